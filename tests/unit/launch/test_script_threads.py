"""The launcher may live in a process with threads (a renderer's, a test runner's) that take its SIGCHLD."""

import sys
import threading

from stepprobe.launch import script


def test_a_thread_that_takes_the_child_s_signal_does_not_stop_the_wait(tmp_path):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)  # started before SIGCHLD is blocked: it receives it
    thread.start()
    try:
        argv = (sys.executable, "-c", "import time; time.sleep(0.2)")
        planned = script.plan(argv, steps=None, warmup="auto")
        evidence = script.Script(argv=argv, folder=tmp_path, planned=planned).observe()
    finally:
        done.set()
        thread.join()
    assert evidence.status == "finished"

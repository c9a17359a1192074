"""``stepprobe run`` as a process: the script must not notice, and the caller must see the script's end."""

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

FAKED = Path(__file__).parents[2] / "fakes" / "faked.py"
STEPS = 'import os; open(os.environ["STEPPROBE_RUN"] + "/steps-rank0-pid1.jsonl", "a").write("12 13\\n")\n'
COUNT_SIGNALS = """
    import signal, sys, time
    received = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
        signal.signal(number, lambda number, frame: received.append(signal.Signals(number).name))
    print("ready", flush=True)
    deadline = time.monotonic() + 60
    while not received and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # long enough for a second one to arrive
    print("received", *received, flush=True)
"""


def observed(*command, options=()):
    return [sys.executable, str(FAKED), "run", *options, "--", *command]


def python(text):
    return [sys.executable, "-c", textwrap.dedent(text)]


@pytest.fixture(autouse=True)
def _cwd(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)


def finish(command, **options):
    return subprocess.run(command, capture_output=True, timeout=60, check=False, **options)


@pytest.mark.parametrize(("text", "code"), [("", 0), ("raise SystemExit(3)", 3), ("import os; os._exit(7)", 7)])
def test_the_exit_code_is_the_scripts(text, code):
    assert finish(observed(*python(STEPS + text))).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_a_script_that_dies_of_a_signal_takes_us_along(number):
    result = finish(
        observed(
            *python(
                STEPS + f"import signal; signal.signal({number}, 0) if {number} != 9 else 0\n"
                f"os.kill(os.getpid(), {number})"
            )
        )
    )
    assert result.returncode == -number
    assert f"2 steps, signal {number:d}" in result.stderr.decode()


def test_a_shell_sees_137(tmp_path):
    result = finish(["sh", "-c", '"$@"; exit $?', "sh", *observed("sh", "-c", "kill -9 $$")])
    assert result.returncode == 137


@pytest.mark.parametrize(("text", "code"), [("", 3), ("raise SystemExit(5)", 5)])
def test_without_a_step_success_becomes_3_and_failure_stays(text, code):
    result = finish(observed(*python(text)))
    assert result.returncode == code
    assert b"no training step was observed" in result.stderr


def test_standard_streams_pass_through_byte_by_byte():
    text = STEPS + "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()); sys.stderr.write('own error')"
    sent = bytes(range(256)) * 100
    result = finish(observed(*python(text)), input=sent)
    assert result.stdout == sent
    assert result.stderr.startswith(b"own error2 steps, finished width=80 color=False\n")


def test_json_is_one_object_and_the_scripts_output_goes_to_standard_error():
    import json

    result = finish(observed(*python(STEPS + "print('own output')"), options=["--json"]))
    assert json.loads(result.stdout)["figures"]["step.count"]["value"] == 2
    assert b"own output" in result.stderr


def test_a_script_that_closes_its_output_changes_nothing_for_the_report():
    result = finish(observed(*python(STEPS + "os.close(1); os.close(2); os._exit(0)")))
    assert result.returncode == 0
    assert b"2 steps, finished" in result.stderr


def test_the_script_sees_the_process_that_a_shell_would_have_made():
    look = ["sh", "-c", "grep ^Sig[BIC] /proc/self/status; ls /proc/self/fd | wc -l; umask; pwd; ps -o pgid= $$"]
    direct = subprocess.run(look, capture_output=True, check=True, timeout=60, stdin=subprocess.DEVNULL)
    under = finish(observed(*look), stdin=subprocess.DEVNULL)
    # glibc's posix_spawn, ours or make's, leaves its own two signals, 32 and 33, ignored; no program can use them
    own = bit(32) | bit(33)
    seen, expected = (
        re.sub(rb"(?<=SigIgn:\t)\w+", lambda found: b"%x" % (int(found[0], 16) & ~own), process.stdout)
        for process in (under, direct)
    )
    assert seen == expected


def test_signals_that_the_caller_ignores_or_blocks_stay_so():
    prepare = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2}); os.execv(sys.argv[1], sys.argv[1:])"
    )
    look = [shutil.which("grep"), "-E", "^Sig(Blk|Ign)", "/proc/self/status"]  # a shell would clear its mask
    direct = finish([sys.executable, "-c", prepare, *look])
    under = finish([sys.executable, "-c", prepare, *observed(*look)])
    assert mask(direct.stdout, b"SigBlk") == mask(under.stdout, b"SigBlk") == bit(signal.SIGUSR2)
    assert mask(direct.stdout, b"SigIgn") & mask(under.stdout, b"SigIgn") & bit(signal.SIGHUP)


def mask(status, name):
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith(name))


def bit(number):
    return 1 << (number - 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_a_signal_that_is_sent_to_us_reaches_the_script_once(number):
    process = subprocess.Popen(
        observed(*python(STEPS + textwrap.dedent(COUNT_SIGNALS))), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.decode() == f"received {number.name}\n"
    assert (process.returncode, b"2 steps, finished" in err) == (0, True)


def test_terminate_ends_a_script_that_does_not_care():
    process = subprocess.Popen(
        observed(*python(STEPS + "import time; print('ready', flush=True); time.sleep(60)")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert b"2 steps, signal 15" in err


def read_until(terminal, mark, seconds=30):
    """Return what a terminal shows up to a mark, or to its end when there is no mark."""
    shown, deadline = b"", time.monotonic() + seconds
    while mark is None or mark not in shown:
        assert select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0], shown
        try:
            part = os.read(terminal, 4096)
        except OSError:  # the last process has closed it
            break
        if not part:
            break
        shown += part
    return shown


@pytest.fixture
def terminals():
    """Start commands on terminals of their own, and end what a failed test leaves behind."""
    children = []

    def start(command):
        child, terminal = pty.fork()
        if child == 0:
            os.execv(command[0], command)
        children.append((child, terminal))
        return child, terminal

    yield start
    for child, terminal in children:
        os.close(terminal)  # hangs up on every process of its session
        with contextlib.suppress(ProcessLookupError):  # a test that passed has seen its end
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_control_c_reaches_the_script_once_and_the_report_still_comes(terminals):
    child, terminal = terminals(observed(*python(STEPS + textwrap.dedent(COUNT_SIGNALS))))
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    shown = read_until(terminal, None)
    _, status = os.waitpid(child, 0)
    assert shown.count(b"SIGINT") == 1, shown
    assert b"2 steps, finished" in shown
    assert os.waitstatus_to_exitcode(status) == 0


def test_control_c_ends_a_script_that_does_not_care_as_it_would_alone(terminals):
    child, terminal = terminals(observed(*python(STEPS + "import time; print('ready', flush=True); time.sleep(60)")))
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    shown = read_until(terminal, None)
    _, status = os.waitpid(child, 0)
    assert shown.count(b"KeyboardInterrupt") == 1
    assert b"2 steps, signal 2" in shown
    assert os.waitstatus_to_exitcode(status) == -signal.SIGINT


JOB_SHELL = """
    import os, signal, sys
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(sys.argv[1], sys.argv[1:])
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    print("stopped" if os.WIFSTOPPED(status) else f"not stopped: {status}", flush=True)
    os.tcsetpgrp(0, job)
    os.killpg(job, signal.SIGCONT)
    _, status = os.waitpid(job, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_control_z_stops_the_job_for_its_shell_and_fg_goes_on(terminals):
    script = STEPS + "import time; print('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    child, terminal = terminals([*python(JOB_SHELL), *observed(*python(script))])
    read_until(terminal, b"ready")
    os.write(terminal, b"\x1a")
    read_until(terminal, b"stopped")
    Path("go").touch()
    shown = read_until(terminal, None)
    os.waitpid(child, 0)
    assert b"2 steps, finished" in shown
    assert b"ended 0" in shown


def test_a_script_outlives_us_and_its_run_can_be_reported_when_it_has_ended():
    script = (
        STEPS + "import time; print('ready', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n" + STEPS
    )
    process = subprocess.Popen(observed(*python(script)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.kill()
    report = [sys.executable, str(FAKED), "report"]
    verify = [sys.executable, str(FAKED), "verify"]
    assert b"2 steps, interrupted" in finish(report).stdout
    assert finish(verify).returncode == 4  # it still goes on
    Path("go").touch()
    process.stdout.read()  # until the script, too, has closed it
    process.communicate()
    deadline = time.monotonic() + 60
    while finish(verify).returncode and time.monotonic() < deadline:
        assert b"4 steps, interrupted" in finish(report).stdout
    assert finish(verify).returncode == 0


def test_a_reader_that_goes_away_is_no_error(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # then something is left to flush at exit
    finish(observed(*python(STEPS)))
    text = f'"{sys.executable}" "{FAKED}" report 2>errors; echo $? > code'
    gone = subprocess.Popen(["sh", "-c", text], stdout=subprocess.PIPE)
    gone.stdout.close()
    gone.wait(60)
    assert (Path("code").read_text(), Path("errors").read_text()) == ("141\n", "")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_report_that_nobody_reads_leaves_the_scripts_exit_code(monkeypatch, options):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    stream = "stdout" if options else "stderr"
    unread = subprocess.Popen(
        observed(*python(STEPS + "raise SystemExit(5)"), options=options), **{stream: subprocess.PIPE}
    )
    getattr(unread, stream).close()
    assert unread.wait(60) == 5


def test_a_script_that_removes_the_working_folder_keeps_its_exit_code(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    result = finish(observed("sh", "-c", "rm -rf ../gone; exit 5", options=["--out", str(tmp_path / "runs")]))
    assert result.returncode == 5
    assert str(tmp_path / "runs").encode() in result.stderr


def test_a_working_folder_that_was_removed_and_closed_streams_do_not_matter(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    text = "import os\nfor number in range(3):\n try: os.fstat(number)\n except OSError: print(number, file=F)"
    script = f"F = open({str(tmp_path / 'closed')!r}, 'w')\n{text}"
    command = shlex.join(observed(*python(STEPS + script), options=("--out", str(tmp_path / "runs"))))
    finish(["sh", "-c", f"cd {gone} && rmdir {gone} && exec {command} <&- >&- 2>&-"])
    assert (tmp_path / "closed").is_file()
    assert list(tmp_path.glob("runs/*/report.html"))


def test_nothing_of_ours_goes_to_the_script_s_output_where_standard_error_is_closed(tmp_path):
    command = shlex.join(observed(*python(STEPS + "print('its own')"), options=("--out", str(tmp_path / "runs"))))
    assert finish(["sh", "-c", f"exec {command} 2>&-"]).stdout == b"its own\n"
    assert list(tmp_path.glob("runs/*/report.html"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_behind_the_report_does_not_cost_the_scripts_exit_code():
    with open("/dev/full", "w") as full:
        command = observed(*python(STEPS + "raise SystemExit(7)"))
        assert subprocess.run(command, stderr=full, timeout=60, check=False).returncode == 7

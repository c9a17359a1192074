"""What can go wrong, as one tree. Each class has one exit code; each message says what happened and the next step.

* StepprobeError           1   the base; itself where a report or a manifest cannot be written
  x AssertionFailed        1   the evidence does not give the report that is kept (``verify``)
  x UsageError             2   the command line, the config or a path is wrong
  x NotObserved            3   the subject could not be observed: no step, no dataset for the demo
  x EvidenceError          4   evidence is missing, damaged, half-written or of a newer schema
    x LedgerError          4   accounts and wall time do not agree to the nanosecond

Not everything that ends badly is an error: the verdicts ``fail`` and ``not measured`` of a report give 1 and 3, too.
"""


class StepprobeError(Exception):
    """Base of every error that stepprobe raises on purpose."""

    exit_code = 1


class AssertionFailed(StepprobeError):
    """Something that was asserted does not hold."""

    exit_code = 1


class UsageError(StepprobeError):
    """The command line, the config or a path asks for something impossible."""

    exit_code = 2


class NotObserved(StepprobeError):
    """The subject could not be observed."""

    exit_code = 3


class EvidenceError(StepprobeError):
    """Evidence cannot be read back."""

    exit_code = 4


class LedgerError(EvidenceError):
    """A ledger does not close: its accounts do not sum to its wall time."""

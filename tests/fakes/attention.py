"""Tiny real models under the mask probe."""

import pytest

from stepprobe.instruments.attention import batches, models, tiny
from stepprobe.instruments.attention.configs import Config
from stepprobe.instruments.attention.observed import PLAIN, observe
from stepprobe.instruments.attention.subject import as_evidence
from stepprobe.probes import mask


def config(kind, **changes):
    """A tiny config of a model type of transformers, with fields changed."""
    from transformers import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {kind}")
    with models.quiet():
        small = tiny.ways(CONFIG_MAPPING[kind]().get_text_config())[0]()
        fields = {name: value for name, value in small.to_dict().items() if not name.startswith("_")}
        return type(small)(**{**fields, **changes}) if changes else small


def inputs(kind="none", size=1, length=tiny.LENGTH, cache=False, **more):
    """A synthetic batch; ``cache=None`` passes no use_cache, as a plain loop does."""
    batch = batches.make(kind, size, length)
    return batch | ({} if cache is None else {"use_cache": cache}) | more


def evidence(model_config, kind="none", *, attention=None, way=PLAIN, card="", **batch):
    """The evidence of a config under a synthetic batch."""
    with models.quiet():
        capture = observe(Config(model_config), kind, inputs(kind, **batch), attention, way)
    return as_evidence(capture, model_config.model_type, card)


def report(model_config, kind="none", **options):
    """The report of a config under a synthetic batch."""
    return mask.derive(evidence(model_config, kind, **options))


def kinds(told):
    """The kinds of a report's findings."""
    return {finding.kind for finding in told.findings}


def value(told, name):
    return told.figures[name].value


def cell(told, column, row=0):
    """A cell of the table of layers."""
    table = next(table for table in told.tables if table.name == "layers")
    return table.rows[row][[head.title for head in table.columns].index(column)]


def holds(told, number):
    """Whether an assertion holds, in the report's words."""
    table = next(table for table in told.tables if table.name == "assertions")
    return next(row[2] for row in table.rows if row[0] == number)

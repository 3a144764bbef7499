"""Options belong to their owner: every option of every run is used or refused, ranges hold, trees survive JSON."""

import json
from collections import Counter
from dataclasses import FrozenInstanceError, field, replace

import pytest

from eblvm.engine import options, recipes
from eblvm.engine.cli.configuration import _every_option, add_run_options, configuration
from eblvm.engine.cli.parser import Parser
from eblvm.engine.config import Config, who_reads
from eblvm.engine.errors import UserError
from eblvm.engine.methods import KINDS as METHODS
from eblvm.engine.models import KINDS as MODELS
from eblvm.engine.options import Options, option

Size = int


class Annotated(Options):
    own: "Size" = option(1, "a name of this file")
    many: "tuple[float, ...]" = option((1.0,), "several")
    either: "int | None" = option(None, "perhaps")


OPTIONS = sorted(set(_every_option()) - {"method", "model"})


def runs() -> list[Config]:
    """Every method on every model that it can train."""
    found = []
    for method, node in METHODS.items():
        for name, model in (("checkerboard", None), ("digits", "deep"), ("mnist", None), ("celeba64", None)):
            if node.generates and name == "checkerboard":
                continue
            config = recipes.recipe(name, None if node.generates else model, method=method)
            try:
                config.check()
            except UserError:
                continue
            found.append(config)
    return found


RUNS = runs()


def test_a_node_is_a_frozen_dataclass() -> None:
    class Plain(Options):
        kind = "plain"
        width: int = option(3, "columns")
        seen: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    class Deeper(Plain):
        depth: int = option(2, "rows")

    node = Plain(4, {"a": 1})
    assert repr(node).endswith("Plain(width=4)")
    assert node == Plain(4)
    assert hash(node) == hash(Plain(4))
    assert node != Plain(5)
    assert Deeper(4) != node
    assert replace(Deeper(4), depth=7) == Deeper(4, depth=7)
    with pytest.raises(FrozenInstanceError):
        node.width = 5


def test_an_annotation_may_name_what_its_file_defines() -> None:
    read = {name: options.value_type(Annotated, name) for name in ("own", "many", "either")}
    assert read == {"own": (Size, False, False), "many": (float, True, False), "either": (int, False, True)}


def test_every_method_can_be_run() -> None:
    assert {config.method.kind for config in RUNS} == set(METHODS)


@pytest.mark.parametrize("config", RUNS, ids=lambda c: f"{c.recipe}-{c.method.kind}-{c.model.kind}")
def test_every_option_is_used_or_refused(config: Config) -> None:
    """What a run reads can be set, and is then in the tree; what it does not read is refused with who reads it."""
    read = {leaf.name: leaf for leaf in config.leaves()}
    for name in OPTIONS:
        if name in read:
            leaf = read[name]
            values = list(options.kinds_of(config, leaf)) if leaf.is_slot else [leaf.value]
            for value in values:
                assert config.replaced(**{name: value})[name] == value
        else:
            with pytest.raises(UserError, match="does not read --"):
                config.replaced(**{name: 1})


@pytest.mark.parametrize("config", RUNS, ids=lambda c: f"{c.recipe}-{c.method.kind}-{c.model.kind}")
def test_names_are_unique_and_trees_survive_json(config: Config) -> None:
    names = Counter(leaf.name for leaf in config.leaves())
    assert max(names.values()) == 1, names.most_common(1)
    again = Config.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.differences(config) == []
    assert recipes.arguments(config, without=("data",)) == recipes.arguments(again, without=("data",))


def test_an_option_of_another_method_names_its_readers() -> None:
    with pytest.raises(
        UserError, match=r"'sm' on model 'grbm' does not read --L; it is an option of method .*'vages-dsm'"
    ):
        recipes.recipe("checkerboard", method="sm").replaced(L=7)
    assert who_reads("weight_decay") == {"method": ["bidvl"]}
    assert set(who_reads("width")["model"]) >= {"deep", "sn-conv"}
    assert who_reads("decay") == {"schedule": ["step"]}
    assert who_reads("nothing") == {}


def test_a_new_method_keeps_the_recipe_and_the_changes_made_so_far() -> None:
    config = recipes.recipe("cifar10").replaced(batch=8, K=3)
    switched = config.replaced(method="vages-mdsm")
    assert (switched["batch"], switched["K"], switched["C"], switched["divergence"]) == (8, 3, 5, "fisher")
    vages = recipes.recipe("cifar10", method="vages-mdsm")
    assert vages["ema"] == 0.999  # of this method's own recipe
    assert switched == vages.replaced(batch=8, K=3, ema=None)


def test_a_model_brings_a_posterior_and_a_divergence_that_fit() -> None:
    config = recipes.recipe("checkerboard").replaced(model="mlp")
    assert (config["posterior"], config["divergence"]) == ("gaussian-mlp", "fisher")
    config = recipes.recipe("digits").replaced(model="deep")
    assert (config["posterior"], config["divergence"]) == ("conv", "kl-exact")
    with pytest.raises(UserError, match="posterior 'linear' needs linear in h"):
        config.replaced(posterior="linear")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"N": -1}, "got N=-1, expected 0 or more"),
        ({"N": 1.5}, "got N=1.5, expected int"),
        ({"sigma": 0.0}, "got sigma=0.0, expected a positive number"),
        ({"sigma": float("nan")}, "expected a finite number"),
        ({"ema": 1.0}, "expected above 0, below 1"),
        ({"beta1": 1.0}, "expected 0 to below 1"),
        ({"lr": "much"}, "expected several of float"),
        ({"compile": 1}, "got compile=1, expected bool"),
        ({"unroll_optimizer": "adm"}, "did you mean 'adam'"),
        ({"method": "bidsn"}, "did you mean 'bidsm'"),
    ],
)
def test_values_outside_their_range_are_refused(change: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace("(", r"\(")):
        recipes.checkerboard().replaced(**change)


def test_saved_trees_with_unknown_or_wrong_entries_are_refused() -> None:
    saved = recipes.checkerboard().to_json()
    for change, sentence in (
        ({"method": {**saved["method"], "kind": "nosuch"}}, "unknown method"),
        ({"running": {**saved["running"], "colour": 1}}, "an option 'colour'"),
        ({"optimisation": {**saved["optimisation"], "steps": "many"}}, "got steps='many'"),
        ({"running": 3}, "expected a table of options"),
    ):
        with pytest.raises(UserError, match=sentence):
            Config.from_json({**saved, **change})


def test_capabilities_decide_what_is_there() -> None:
    class Leaf(Options):
        able: bool = False
        x: int = option(1, "x", needs="able")

    assert [leaf.name for leaf in Leaf().leaves()] == []
    assert [leaf.name for leaf in Leaf(able=True).leaves()] == ["x"]
    assert {name for name, model in MODELS.items() if model.images} >= {"deep", "sn-conv"}


def parsed(config: Config) -> Config:
    """The configuration that the command line makes of a configuration's own arguments."""
    parser = Parser("train", add_help=False)
    add_run_options(parser)
    words = " ".join(recipes.arguments(config)).split()
    return configuration(parser, parser.parse([config.recipe, *words]))


@pytest.mark.parametrize("config", RUNS, ids=lambda c: f"{c.recipe}-{c.method.kind}-{c.model.kind}")
def test_arguments_make_the_configuration_again(config: Config) -> None:
    changes = {
        "steps": 7,
        "lr": (1e-3, 2e-3),
        "schedule": "step",
        "decay": 0.25,
        "ema": 0.5,
        "K": 2,
        "network": "published",
    }
    read = {leaf.name for leaf in config.replaced(schedule="step").leaves()}
    changed = config.replaced(**{name: value for name, value in changes.items() if name in read})
    for one in (config, changed):
        assert parsed(one) == one


def test_arguments_name_only_what_differs() -> None:
    config = recipes.recipe("celeba64").replaced(network="published", best_response="newton", K=1)
    assert recipes.arguments(config) == ["--network published", "--best-response newton", "--K 1"]
    assert recipes.arguments(recipes.recipe("celeba128", method="bidvl")) == ["--method bidvl"]


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_every_option_of_a_run_is_a_flag(name: str) -> None:
    """Those of the step too: --compile, --no-fused, --micro-batch."""
    read = {leaf.name for leaf in recipes.recipe(name).leaves() if leaf.name != "dataset"}
    assert {"compile", "graphs", "micro_batch"} <= read
    assert read - set(_every_option()) == set()

"""Parameter files, records and a DVC that are made up, for the tests of the study."""

from study.directions import settings
from study.findings import Files
from study.page import FIGURES
from study.records import Record
from study.verdicts import name_of
from xcutils.core.errors import UserError
from xcutils.core.pipelines import UNIDEC

SETTINGS = settings()
ROW_NAMES = {"encoder", "classifier", "fused", "concatenated", "classifier, head", "classifier, tail"}
UNIDEC_PARAMS = str(UNIDEC.params)


def made_up_files() -> Files:
    """Parameter files with just the names that the settings change, and two recipes more."""
    out: Files = {"params.yaml": {"seed": 0, "dataset": "d"}, UNIDEC_PARAMS: {"seed": 0, "train": {}}}
    for setting in SETTINGS.values():
        for name in setting.changes:
            file = UNIDEC_PARAMS if setting.start == UNIDEC_PARAMS and "prepare" not in name else "params.yaml"
            section, _, key = name.rpartition(".")
            (out[file].setdefault(section, {}) if section else out[file]).setdefault(key)
    names = {setting.start for setting in SETTINGS.values()} - set(out) | {"recipes/dexa-gandalf.yaml"}
    recipes = {name: out["params.yaml"] | {"K": name} for name in sorted(names)}
    return out | recipes | {"recipes/unidec.yaml": out[UNIDEC_PARAMS] | {"eta": 7}}


FILES = made_up_files()


def record_of(rows: dict, seconds: float | None = None, code: str = "present") -> Record:
    return Record(code, "parameters", rows, seconds)


def encoder_rows(**values: list[float]) -> dict[str, dict]:
    """{experiment: rows} with the encoder's figures of each setting for seeds 0, 1, ..."""
    return {
        name_of(setting, seed): {"encoder": dict.fromkeys(FIGURES, value)}
        for setting, some in values.items()
        for seed, value in enumerate(some)
    }


class MadeUpDVC:
    """Experiments that take seconds of a made-up clock, fail, or stop the study.

    done, ran   {experiment that is there: the words of its command}; all that were run, in their order
    seconds     that an experiment takes, 50 where it is not named
    failing     those that fail
    stop_after  so many experiments, after which the study is stopped as by Ctrl-C
    code        digest of the present code; code_of: that of each experiment
    figure      every figure of every experiment
    """

    def __init__(self):
        self.done: dict[str, tuple[str, ...]] = {}
        self.ran: list[str] = []
        self.clock = 0.0
        self.seconds: dict[str, float] = {}
        self.failing: set[str] = set()
        self.stop_after: int | None = None
        self.code = "first"
        self.code_of: dict[str, str] = {}
        self.figure = 50.0

    def __call__(self, *words: str, minutes: float | None = None) -> str:
        if words[:2] == ("exp", "list"):
            return "\n".join(self.done)
        if words[:2] == ("exp", "remove"):
            del self.done[words[2]]
            return ""
        assert words[:2] == ("exp", "run") and "--temp" in words
        name = words[words.index("--name") + 1]
        if self.stop_after == len(self.ran):
            raise KeyboardInterrupt
        self.ran.append(name)
        self.clock += self.seconds.get(name, 50.0)
        if name in self.failing:
            raise UserError("it broke")
        assert name not in self.done  # DVC refuses a name that is taken
        self.done[name], self.code_of[name] = words, self.code
        return ""

    def results(self, wanted) -> dict:
        figures = dict.fromkeys((*FIGURES, "C@1", "R@10"), self.figure)
        return {one.name: (one.name, dict.fromkeys(ROW_NAMES, figures)) for one in wanted if one.name in self.done}

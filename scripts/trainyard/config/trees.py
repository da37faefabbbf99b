"""The section `trees` of a sweep: gradient-boosted trees by XGBoost or LightGBM."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt

from trainyard.config.train import TrialSpec

ClassName = Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else str(value))]

# Metrics of the validation rows after each round, and of a whole fit: of classes, then of numbers.
ROUND_METRICS: Final = ("val_accuracy", "val_log_loss", "val_rmse")
FIT_METRICS: Final = (
    *ROUND_METRICS, "val_auc", "train_accuracy", "train_log_loss", "train_auc", "train_rmse", "cv_accuracy", "cv_rmse",
    "cv_deviation", "rounds", "best_round", "threads",
)  # fmt: skip

# Parameters that Trainyard gives the libraries, and where the config has them.
_SET_ELSEWHERE: Final = {
    "n_jobs": "slots.cpus_per_trial",
    "nthread": "slots.cpus_per_trial",
    "num_threads": "slots.cpus_per_trial",
    "n_estimators": "rounds",
    "n_iter": "rounds",
    "max_iter": "rounds",
    "nrounds": "rounds",
    "num_boost_round": "rounds",
    "num_iteration": "rounds",
    "num_iterations": "rounds",
    "num_round": "rounds",
    "num_rounds": "rounds",
    "num_tree": "rounds",
    "num_trees": "rounds",
    "early_stopping_round": "early_stopping",
    "early_stopping_rounds": "early_stopping",
    "n_iter_no_change": "early_stopping",
    "random_state": "seed",
    "application": "objective",
    "loss": "objective",
}

# Of two names of a parameter, XGBoost ignores one without a word.
_SAME_IN_XGBOOST: Final = (
    ("eta", "learning_rate"),
    ("lambda", "reg_lambda"),
    ("alpha", "reg_alpha"),
    ("gamma", "min_split_loss"),
)

# Parameters by which a library draws rows or columns for a tree, and the value with which it draws none.
_SAMPLING: Final[dict[str, dict[str, int]]] = {
    "xgboost": {"subsample": 1, "colsample_bytree": 1, "colsample_bylevel": 1, "colsample_bynode": 1},
    "lightgbm": {
        "bagging_freq": 0,
        "subsample_freq": 0,
        "feature_fraction": 1,
        "feature_fraction_bynode": 1,
        "sub_feature": 1,
        "sub_feature_bynode": 1,
        "colsample_bytree": 1,
        "colsample_bynode": 1,
    },
}


class Trees(TrialSpec, extra="allow"):
    """What a trial fits: gradient-boosted trees, on all CPUs of its slot.

    All other keys are parameters of the library under its own names, such as `max_depth` or `num_leaves`. A parameter
    that the library does not know ends the trial with an error.
    """

    counter: ClassVar[str] = "rounds"
    best_epoch: ClassVar[str] = "best_round"
    data_copies: ClassVar[float] = 12  # float32, and the library's own copy

    library: Literal["xgboost", "lightgbm"] = Field("xgboost", description="The library.")
    rounds: PositiveInt = Field(100, description="Number of boosting rounds; with `early_stopping`, at most.")
    early_stopping: PositiveInt | None = Field(
        None,
        description="End a fit when the loss of the validation rows has had no new best for this number of rounds, and "
        "keep the rounds up to the best one. The validation scores are then too good: the rows have chosen the rounds.",
    )
    folds: Annotated[int, Field(ge=2)] | None = Field(
        None,
        description="Cross-validation: the training rows in this number of parts, stratified by class, each of which "
        "is predicted by a fit to the others, with the rounds that `early_stopping` has found. `cv_accuracy` (or "
        "`cv_rmse`) is the mean, `cv_deviation` the standard deviation.",
    )
    class_weights: Literal["balanced"] | dict[ClassName, PositiveFloat] | None = Field(
        None,
        description="Weights of the training rows by class, e.g. `{rare: 5}` (1 for all others), or `balanced`: "
        "inversely proportional to the number of rows of a class.",
    )
    seed: int = Field(0, description="Random seed of the library.")

    def _problems(self) -> Iterator[str]:
        for name in self.parameters:
            if name in _SET_ELSEWHERE:
                yield f"give `{_SET_ELSEWHERE[name]}` instead of {name}"
        if self.library == "xgboost":
            yield from self._problems_of_xgboost()

    def _problems_of_xgboost(self) -> Iterator[str]:
        for first, second in _SAME_IN_XGBOOST:
            if {first, second} <= self.parameters.keys():
                yield f"{first} and {second} are two names of one parameter: give one"
        if self.early_stopping and self.parameters.get("booster") == "gblinear":
            yield "gblinear cannot go back to its best round: remove early_stopping, and vary rounds"

    @property
    def content(self) -> dict[str, Any]:
        """The settings that identify the result of the fit."""
        return {"trees": self.model_dump(mode="json", exclude_defaults=True)}

    @property
    def packages(self) -> list[str]:
        """The package of its library."""
        return [self.library]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the library."""
        return dict(self.model_extra or {})

    @property
    def epochs(self) -> int:
        """The number of epochs that it reports at most: a round is one."""
        return self.rounds

    @property
    def patience(self) -> int | None:
        """The number of epochs without a new best after which it ends."""
        return self.early_stopping

    @property
    def depends_on_seed(self) -> bool:
        """Whether it draws rows or columns for each tree; without that, hardly anything depends on the seed."""
        without = _SAMPLING[self.library]
        return any(name in without and value != without[name] for name, value in self.parameters.items())

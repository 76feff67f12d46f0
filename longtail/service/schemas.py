"""The bodies of requests and answers, as OpenAPI describes them; what is beyond a limit is refused as it is read."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model, model_validator

from longtail.service.settings import Settings

MOST_IDS = 10_000  # labels of a request


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class LabelOut(BaseModel):
    id: str
    text: str
    probability: float = Field(description="The chance that the label is right.")


class Prediction(BaseModel):
    id: str | None = Field(description="The id that the text came with.")
    known: bool = Field(description="False where no word is known: the labels are then the most frequent ones.")
    labels: list[LabelOut] = Field(description="Best first.")


class Predictions(BaseModel):
    predictions: list[Prediction] = Field(description="One for each text, in their order.")
    model: str = Field(description="The model's hash, as `/version` shows it.")


class Word(BaseModel):
    text: str
    weight: float = Field(description="How much the label's score falls when the word is left out.")
    places: list[tuple[int, int]] = Field(description="Where it stands in the text, in characters.")


class DocumentOut(BaseModel):
    id: str | None
    text: str | None
    similarity: float
    share: float = Field(description="Its share of what the model remembers for this text.")


class Explained(BaseModel):
    id: str
    text: str
    probability: float
    score: float
    parts: dict[str, float] = Field(description="What the score is the sum of.")
    words: list[Word]
    named: list[str] = Field(description="The words that speak for the label; without them the score is lower.")
    without: float = Field(description="The score without these words.")
    documents: list[DocumentOut] = Field(description="The nearest training documents that have the label.")


class Explanations(BaseModel):
    known: bool
    labels: list[Explained]
    model: str


class LabelFacts(BaseModel):
    id: str
    text: str
    docs: int = Field(description="Training documents that have it.")


class Labels(BaseModel):
    labels: list[LabelFacts]
    total: int = Field(description="Labels of the model.")


class LabelPage(LabelFacts):
    results: dict[str, Any] | None = Field(description="What the test documents showed, where the model has it.")
    neighbours: list[LabelFacts] = Field(description="Labels near it, nearest first.")


class Changed(BaseModel):
    changed: int = Field(description="Labels that were added, removed or renamed.")
    total: int = Field(description="Labels of the model now.")


class Error(BaseModel):
    error: str = Field(description="What is wrong and what to do, in a sentence.")


class Status(BaseModel):
    status: str


class Version(BaseModel):
    longtail: str
    model: str = Field(description="A hash of the model's files.")
    created: str
    dataset: str
    labels: int


@dataclass(frozen=True)
class Bodies:
    """The bodies that a service of these limits takes."""

    predict: type[BaseModel]
    explain: type[BaseModel]
    add: type[BaseModel]
    rename: type[BaseModel]

    @classmethod
    def within(cls, settings: Settings) -> "Bodies":
        text = Annotated[str, StringConstraints(max_length=settings.max_length)]
        name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
        named = create_model("TextWithId", __base__=Body, id=(name, ...), text=(text, ...))
        ids = Annotated[list[name], Field(min_length=1, max_length=MOST_IDS)]
        k = Annotated[int, Field(ge=1, le=settings.max_k, description="Labels of a text, at most.")]
        share = Annotated[float, Field(ge=0, le=1)]
        which = Annotated[str | None, Field(description="`compare`: the model that is shown beside this one.")]
        predict = create_model(
            "Predict",
            __base__=OneCutoff,
            texts=(Annotated[list[text | named], Field(min_length=1, max_length=settings.max_texts)], ...),
            k=(k, 10),
            threshold=(Annotated[share | None, Field(description="Only labels of at least this probability.")], None),
            precision=(
                Annotated[share | None, Field(description="Only so many labels that this share of them is right.")],
                None,
            ),
            labels=(Annotated[ids | None, Field(description="Only these labels may be answered.")], None),
            which=(which, None),
        )
        explain = create_model(
            "Explain",
            __base__=Body,
            text=(text, ...),
            labels=(Annotated[list[name] | None, Field(min_length=1, max_length=20)], None),
            k=(Annotated[int, Field(ge=1, le=20)], 5),
            which=(which, None),
        )
        new = create_model(
            "NewLabel",
            __base__=Body,
            id=(name, ...),
            text=(Annotated[str, StringConstraints(min_length=1, max_length=settings.max_length)], ...),
            examples=(
                Annotated[list[text], Field(max_length=100, description="Texts of documents that have the label.")],
                [],
            ),
        )
        add = create_model(
            "AddLabels", __base__=Body, labels=(Annotated[list[new], Field(min_length=1, max_length=MOST_IDS)], ...)
        )
        texts = Annotated[dict[name, name], Field(min_length=1, max_length=MOST_IDS)]
        rename = create_model("RenameLabels", __base__=Body, texts=(texts, ...))
        return cls(predict, explain, add, rename)


class OneCutoff(Body):
    @model_validator(mode="after")
    def one_cutoff(self) -> "OneCutoff":
        if getattr(self, "threshold", None) is not None and getattr(self, "precision", None) is not None:
            raise ValueError("threshold and precision both say where to cut off: give one of them")
        return self

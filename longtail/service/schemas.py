"""The bodies of requests and answers, as OpenAPI describes them; what is beyond a limit is refused as it is read."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self  # pydantic brings it

from longtail.service.settings import Settings

MOST_IDS = 10_000  # labels of a request
MOST_EXAMPLES = 100  # of a label
MOST_EXPLAINED = 20  # labels of a text


def no_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("a label's text is blank: give it words")
    return text


Id = Annotated[str, Field(min_length=1, max_length=1000)]
WHICH = Field(None, description="compare: the model that is shown beside this one.")


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


class Undone(BaseModel):
    undone: str = Field(description="What the change was, in words.")
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
    """The bodies that a service takes."""

    predict: type[BaseModel]
    explain: type[BaseModel]
    add: type[BaseModel]
    rename: type[BaseModel]
    remove: type[BaseModel]

    def all(self) -> list[type[BaseModel]]:
        return [self.predict, self.explain, self.add, self.rename, self.remove]


def within(settings: Settings) -> Bodies:
    """The bodies of requests, with the limits of these settings."""
    longest = settings.max_length
    words = Field(min_length=1, max_length=longest, json_schema_extra={"pattern": r"\S"})
    LabelText = Annotated[str, words, AfterValidator(no_blank)]

    class TextWithId(Body):
        id: Id
        text: str = Field(max_length=longest)

    class Predict(Body):
        texts: list[Annotated[str, Field(max_length=longest)] | TextWithId] = Field(
            min_length=1, max_length=settings.max_texts, description="Texts, or texts with ids, which come back."
        )
        k: int = Field(10, ge=1, le=settings.max_k, description="Labels of a text, at most.")
        threshold: float | None = Field(None, ge=0, le=1, description="Only labels of at least this probability.")
        precision: float | None = Field(None, ge=0, le=1, description="Only so many labels that this share is right.")
        labels: list[Id] | None = Field(
            None, min_length=1, max_length=MOST_IDS, description="Only these labels, by their ids, may be answered."
        )
        which: str | None = WHICH

        @model_validator(mode="after")
        def one_cutoff(self) -> Self:
            if self.threshold is not None and self.precision is not None:
                raise ValueError("threshold and precision both say where to cut off: give one of them")
            return self

    class Explain(Body):
        text: str = Field(max_length=longest)
        labels: list[Id] | None = Field(None, min_length=1, max_length=MOST_EXPLAINED, description="Ids of labels.")
        k: int = Field(5, ge=1, le=MOST_EXPLAINED, description="So many of the best labels, where none are named.")
        which: str | None = WHICH

    class NewLabel(Body):
        id: Id
        text: LabelText
        examples: list[Annotated[str, Field(max_length=longest)]] = Field(
            [], max_length=MOST_EXAMPLES, description="Texts of documents that have the label."
        )

    class AddLabels(Body):
        labels: list[NewLabel] = Field(min_length=1, max_length=MOST_IDS)

    class RenameLabels(Body):
        texts: dict[Id, LabelText] = Field(min_length=1, max_length=MOST_IDS, description="Id -> the new text.")

    class RemoveLabels(Body):
        ids: list[Id] = Field(min_length=1, max_length=MOST_IDS)

    return Bodies(Predict, Explain, AddLabels, RenameLabels, RemoveLabels)

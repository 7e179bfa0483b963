"""An invented world: kinds of things, the facts of each kind, and the statements and questions about them.

Every fact is a function: one thing, one value. So a chain of facts from a named thing has one answer, as long as the
words fit one fact only: a person's school may be where they studied or what they lead.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """`Fact(of="river", target="lake", statements="flows into {}", noun="the lake at the end of {}", ...)`."""

    target: str
    """Kind of the value: another kind of thing, or `year`, `size`."""
    statements: tuple[str, ...]
    """Verb phrases of a passage, with the value for `{}`."""
    noun: str
    """Names the value by its owner, which stands for `{}`; empty for numbers, which end a chain."""
    questions: tuple[str, ...]
    """Questions for the value, with its owner for `{}`."""
    query: str
    """What to look for beside the owner's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    names: tuple[str, ...]
    """Names, with a stem for `{}`."""
    called: tuple[str, ...]
    """What such a thing is called: `a town`."""
    count: int
    """How many there are in a world."""
    facts: dict[str, Fact]


def _year(statements: tuple[str, ...], questions: tuple[str, ...], query: str) -> Fact:
    return Fact(target="year", statements=statements, noun="", questions=questions, query=query)


def _town(statements: tuple[str, ...] = ("stands in {}", "is in {}"), questions: str = "In which town is {}?") -> Fact:
    return Fact(
        target="town",
        statements=statements,
        noun="the town of {}",
        questions=(questions, "Which town has {}?"),
        query="town",
    )


def _person(role: str, statements: tuple[str, ...], questions: tuple[str, ...]) -> Fact:
    return Fact(target="person", statements=statements, noun=f"the {role} of {{}}", questions=questions, query=role)


KINDS: dict[str, Kind] = {
    "person": Kind(
        names=("{}",),
        called=("an engineer", "a painter", "a doctor", "a sailor", "a teacher", "a poet", "a farmer", "a merchant"),
        count=90,
        facts={
            "birthplace": Fact(
                target="town",
                statements=("was born in {}", "comes from {}"),
                noun="the birthplace of {}",
                questions=("In which town was {} born?", "Where was {} born?"),
                query="born",
            ),
            "year": _year(("was born in the year {}",), ("In which year was {} born?",), "year born"),
            "school": Fact(
                target="school",
                statements=("studied at {}", "went to {}"),
                noun="the school where {} studied",
                questions=("At which school did {} study?", "Which school did {} go to?"),
                query="studied school",
            ),
            "employer": Fact(
                target="company",
                statements=("works for {}", "is employed by {}"),
                noun="the company that employs {}",
                questions=("For which company does {} work?", "Which company employs {}?"),
                query="works company",
            ),
        },
    ),
    "town": Kind(
        names=("{}",),
        called=("a town", "an old town", "a small town"),
        count=44,
        facts={
            "river": Fact(
                target="river",
                statements=("lies on {}", "is a port on {}"),
                noun="the river of {}",
                questions=("On which river does {} lie?", "Which river does {} lie on?"),
                query="river",
            ),
            "mayor": _person("mayor", ("has {} as its mayor", "is led by its mayor {}"), ("Who is the mayor of {}?",)),
            "neighbour": Fact(
                target="town",
                statements=("has {} as its northern neighbour",),
                noun="the northern neighbour of {}",
                questions=("What is the northern neighbour of {}?", "Which town is the northern neighbour of {}?"),
                query="northern neighbour",
            ),
            "founded": _year(
                ("was founded in {}",), ("In which year was {} founded?", "When was {} founded?"), "founded"
            ),
        },
    ),
    "river": Kind(
        names=("{} River",),
        called=("a river", "a slow river", "a cold river"),
        count=24,
        facts={
            "lake": Fact(
                target="lake",
                statements=("flows into {}", "ends in {}"),
                noun="the lake at the end of {}",
                questions=("Into which lake does {} flow?", "In which lake does {} end?"),
                query="flows lake",
            ),
            "mountain": Fact(
                target="mountain",
                statements=("rises on {}", "has its source on {}"),
                noun="the source mountain of {}",
                questions=("On which mountain does {} rise?", "On which mountain is the source of {}?"),
                query="rises mountain",
            ),
            "length": Fact(
                target="size",
                statements=("is {} kilometres long",),
                noun="",
                questions=("How many kilometres long is {}?",),
                query="kilometres long",
            ),
        },
    ),
    "lake": Kind(
        names=("Lake {}",),
        called=("a lake", "a deep lake"),
        count=14,
        facts={
            "depth": Fact(
                target="size",
                statements=("is {} metres deep",),
                noun="",
                questions=("How many metres deep is {}?",),
                query="metres deep",
            ),
            "explorer": _person("explorer", ("was explored by {}",), ("Who explored {}?",)),
        },
    ),
    "mountain": Kind(
        names=("Mount {}",),
        called=("a mountain", "a steep mountain"),
        count=14,
        facts={
            "height": Fact(
                target="size",
                statements=("is {} metres high",),
                noun="",
                questions=("How many metres high is {}?",),
                query="metres high",
            ),
            "climber": _person("first climber", ("was first climbed by {}",), ("Who first climbed {}?",)),
        },
    ),
    "bridge": Kind(
        names=("{} Bridge",),
        called=("a stone bridge", "a bridge", "an iron bridge"),
        count=36,
        facts={
            "town": _town(),
            "designer": _person(
                "designer", ("was designed by {}",), ("Who designed {}?", "Who is the designer of {}?")
            ),
            "opened": _year(("was opened in {}",), ("In which year was {} opened?", "When was {} opened?"), "opened"),
        },
    ),
    "company": Kind(
        names=("{} Mills", "{} Press", "{} Works", "{} Traders"),
        called=("a company", "an old company"),
        count=40,
        facts={
            "town": Fact(
                target="town",
                statements=("has its seat in {}", "is based in {}"),
                noun="the home town of {}",
                questions=("In which town is {} based?", "Where is the seat of {}?"),
                query="based seat",
            ),
            "founder": _person("founder", ("was founded by {}",), ("Who founded {}?", "Who is the founder of {}?")),
            "year": _year(("began in {}",), ("In which year did {} begin?", "When did {} begin?"), "began"),
        },
    ),
    "invention": Kind(
        names=("{} Lamp", "{} Loom", "{} Pump", "{} Clock"),
        called=("an invention", "a machine"),
        count=40,
        facts={
            "inventor": _person(
                "inventor", ("was invented by {}",), ("Who invented {}?", "Who is the inventor of {}?")
            ),
            "maker": Fact(
                target="company",
                statements=("is made by {}", "is built by {}"),
                noun="the company that makes {}",
                questions=("Which company makes {}?", "By which company is {} made?"),
                query="made company",
            ),
            "year": _year(("was first shown in {}",), ("In which year was {} first shown?",), "first shown"),
        },
    ),
    "book": Kind(
        names=("{} Letters", "{} Ballads", "{} Tales"),
        called=("a book", "a famous book"),
        count=40,
        facts={
            "author": _person("author", ("was written by {}",), ("Who wrote {}?", "Who is the author of {}?")),
            "setting": Fact(
                target="town",
                statements=("is set in {}", "tells of {}"),
                noun="the setting of {}",
                questions=("In which town is {} set?", "Which town is the setting of {}?"),
                query="set town",
            ),
            "year": _year(("was printed in {}",), ("In which year was {} printed?", "When was {} printed?"), "printed"),
        },
    ),
    "festival": Kind(
        names=("{} Fair", "{} Festival"),
        called=("a yearly feast", "a feast"),
        count=28,
        facts={
            "town": _town(("is held in {}", "takes place in {}"), "In which town is {} held?"),
            "patron": _person("patron", ("is paid for by its patron {}",), ("Who is the patron of {}?",)),
            "year": _year(("was first held in {}",), ("In which year was {} first held?",), "first held"),
        },
    ),
    "school": Kind(
        names=("{} School", "{} Academy"),
        called=("a school", "a large school"),
        count=18,
        facts={
            "town": _town(),
            "head": _person("head", ("is led by its head {}",), ("Who is the head of {}?",)),
            "year": _year(("was opened in {}",), ("In which year was {} opened?", "When was {} opened?"), "opened"),
        },
    ),
    "museum": Kind(
        names=("{} Museum", "{} Gallery"),
        called=("a museum", "a quiet museum"),
        count=22,
        facts={
            "town": _town(),
            "director": _person("director", ("has {} as its director",), ("Who is the director of {}?",)),
            "exhibit": Fact(
                target="invention",
                statements=("shows {}",),
                noun="the main exhibit of {}",
                questions=("What is the main exhibit of {}?", "Which invention does {} show?"),
                query="shows",
            ),
        },
    ),
}

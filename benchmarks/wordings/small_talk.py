"""What people write before and after a request, for each twin. Holds nothing that an agent could be built from."""

from wordings.originals import Twin

BEFORE: dict[Twin, tuple[str, ...]] = {
    "test": (
        "Hello, I hope you are well.",
        "Hi there!",
        "Hey, got a minute?",
        "Good morning,",
        "Dear assistant,",
        "Greetings from a rainy Tuesday.",
        "Hiya, me again :)",
        "Good evening! Sorry to bother you so late.",
        "Hello team,",
        "hi, first time I'm using this, so bear with me.",
        "To whom it may concern:",
        "Guten Tag zusammen,",
        "Yo!",
        "Happy Friday! Here comes the next one.",
        "Hello. My manager asked me to pass this on to you.",
        "Thanks for the last one, it worked great. Now the following, please:",
    ),
    "val": (
        "Hi,",
        "Good afternoon, hope all is fine.",
        "Hey you,",
        "Dear colleagues,",
        "Hello again, another task for you.",
        "Sorry for the short notice.",
        "Servus!",
        "Hello, how was your weekend?",
    ),
}
AFTER: dict[Twin, tuple[str, ...]] = {
    "test": (
        "Thank you very much!",
        "Thanks a lot in advance.",
        "Cheers, Tom",
        "Best regards\nAnna from accounting",
        "No hurry, whenever you find the time.",
        "That's all, have a nice day!",
        "Let me know when it's done.",
        "You're the best.",
        "thx",
        "Many thanks and greetings from Lisbon.",
        "It would really help us out. Thank you!",
        "Viele Grüße, Jens",
        "I appreciate it.",
        "If it works I owe you a coffee.",
        "Looking forward to it!",
        "Sent from my phone",
    ),
    "val": (
        "Thanks!",
        "Kind regards, Maria",
        "Much obliged.",
        "Take your time.",
        "Bye for now.",
        "Danke schön!",
        "Enjoy the rest of your day.",
        "This is important to us, so thanks.",
    ),
}

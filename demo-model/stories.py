"""Short stories in a little world: ten animals with names, ten objects, eight places, seven plots.

Everything a story mentions stays consistent: a name keeps its animal and pronoun, an object its colour, a place
its preposition. A broken model is seen at once, because Mia becomes a fox or the kite changes colour.
"""

import zlib

CHARACTERS = {
    "Mia": ("mouse", "she", "her"),
    "Tom": ("fox", "he", "his"),
    "Ada": ("owl", "she", "her"),
    "Ben": ("bear", "he", "his"),
    "Lily": ("rabbit", "she", "her"),
    "Otto": ("otter", "he", "his"),
    "Rosa": ("hen", "she", "her"),
    "Max": ("hedgehog", "he", "his"),
    "Nina": ("cat", "she", "her"),
    "Finn": ("frog", "he", "his"),
}
ANIMALS = {animal: name for name, (animal, _, _) in CHARACTERS.items()}
OBJECTS = ["kite", "boat", "key", "lantern", "cup", "drum", "map", "hat", "basket", "bell"]
COLOURS = ["red", "blue", "golden", "green", "silver", "yellow"]
PLACES = {
    "hill": "on the hill",
    "river": "by the river",
    "forest": "in the forest",
    "meadow": "in the meadow",
    "lake": "by the lake",
    "mill": "in the old mill",
    "garden": "in the garden",
    "bridge": "under the bridge",
}
PLOTS = ["lost", "gift", "storm", "broken", "race", "picnic", "secret"]


def a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def choose(rng, options, key, habit):
    """One of the options: with probability `habit` the one that `key` always gets, else any.

    Without habits all stories are equally likely, and the greedy one hangs on the last bits of a sum."""
    if habit and rng.random() < habit:
        return options[zlib.crc32(key.encode()) % len(options)]
    return rng.choice(options)


class Cast:
    """Who and what one story is about."""

    def __init__(self, rng, habit, hero=None, friend=None, thing=None):
        names = list(CHARACTERS)
        self.habit = habit
        self.hero = hero or choose(rng, [n for n in names if n != friend], "anybody", habit)
        self.friend = friend or choose(rng, [n for n in names if n != self.hero], "friend " + self.hero, habit)
        self.thing = thing or choose(rng, OBJECTS, "thing of " + self.hero, habit)
        self.colour = choose(rng, COLOURS, "colour of " + self.thing, habit)
        self.home = choose(rng, list(PLACES), "home of " + self.hero, habit)
        self.place = choose(rng, [p for p in PLACES if p != self.home], "place of " + self.thing, habit)
        self.plot = choose(rng, PLOTS, "plot " + self.hero, habit)

    def key(self):
        return "story " + " ".join([self.hero, self.friend, self.thing, self.place, self.plot])


def tell(rng, c):
    """The text of one story."""
    animal, he, his = CHARACTERS[c.hero]
    f_animal, f_he, f_his = CHARACTERS[c.friend]
    He, F_He, thing = he.capitalize(), f_he.capitalize(), f"{c.colour} {c.thing}"
    home, place = PLACES[c.home], PLACES[c.place]
    pick = lambda options: choose(rng, options, "telling of " + c.hero, c.habit)
    opening = pick([
        f"Once upon a time there was {a(animal)} called {c.hero} who lived {home}.",
        f"{c.hero} the {animal} lived {home}.",
        f"Long ago, {a(animal)} called {c.hero} lived {home}.",
    ])
    friend = f"{c.friend} the {f_animal}"
    if c.plot == "lost":
        body = [
            pick([f"{He} had {a(thing)} and took it everywhere.", f"{He} loved {his} {thing} more than anything."]),
            pick([f"One windy morning the {c.thing} was gone.", f"One day the {c.thing} was lost."]),
            f"{c.hero} looked {place}, but the {c.thing} was not there.",
            pick([
                f"Then {friend} came with the {thing} and said, \"Is this yours?\"",
                f"Then {friend} found the {thing} and brought it back.",
            ]),
            f"{c.hero} thanked {c.friend}, and they were friends from that day on.",
        ]
    elif c.plot == "gift":
        body = [
            f"{He} wanted to give {his} friend {friend} a gift.",
            f"So {c.hero} walked for a long time and found {a(thing)} {place}.",
            pick([f"\"This is for you,\" said {c.hero}.", f"\"I found this {c.thing} for you,\" said {c.hero}."]),
            f"{c.friend} was so happy that {f_he} danced.",
            f"{c.friend} kept the {thing} for ever.",
        ]
    elif c.plot == "storm":
        body = [
            pick([f"One night a big storm came.", f"One evening the wind grew strong and the rain fell."]),
            f"{c.hero} heard a small voice {place}.",
            f"It was {friend}, who was cold and lost.",
            f"{c.hero} took {his} {thing} and showed {c.friend} the way home.",
            f"\"You are brave,\" said {c.friend}, and {c.hero} smiled.",
        ]
    elif c.plot == "broken":
        body = [
            f"{He} had {a(thing)}, but one day it broke.",
            f"{c.hero} sat {place} and was sad.",
            f"\"I can help you,\" said {friend}.",
            f"They worked all day, and in the evening the {c.thing} was as good as new.",
            pick([f"{c.hero} laughed and gave {c.friend} a big hug.", f"\"Thank you, {c.friend}!\" said {c.hero}."]),
        ]
    elif c.plot == "race":
        body = [
            f"One sunny day {friend} said, \"Let us race!\"",
            f"The winner would get {a(thing)}.",
            pick([f"{c.hero} ran fast, but {c.friend} ran faster.", f"{c.friend} ran fast, and {c.hero} fell behind."]),
            f"{c.friend} won the {thing}, but {f_he} saw that {c.hero} was sad.",
            f"So {c.friend} shared the {c.thing} with {c.hero}, and they sat {place} together.",
        ]
    elif c.plot == "picnic":
        body = [
            f"{He} packed bread and honey and went to find {friend}.",
            f"They had a picnic {place}.",
            f"After lunch they saw something {c.colour} in the grass.",
            f"It was {a(thing)}!",
            pick([f"They played with the {c.thing} until the sun went down.", f"They took the {c.thing} home and told everyone."]),
        ]
    else:
        body = [
            f"{He} had a secret: {a(thing)} that was hidden {place}.",
            f"One day {friend} asked, \"What do you hide there?\"",
            f"{c.hero} thought for a while and showed {c.friend} the {thing}.",
            f"\"It is beautiful,\" said {c.friend}.",
            "From that day on the secret belonged to both of them.",
        ]
    return " ".join([opening] + body)


def ask(rng, habit):
    """A request for a story and the cast that answers it."""
    kind = rng.randrange(6)
    tell_me = rng.choice(["Tell me a story", "Tell me a short story", "Write a story", "Write a short story", "Can you tell me a story"])
    end = "?" if tell_me.startswith("Can") else "."
    hero = rng.choice(list(CHARACTERS))
    friend = rng.choice([n for n in CHARACTERS if n != hero])
    thing = rng.choice(OBJECTS)
    animal, f_animal = CHARACTERS[hero][0], CHARACTERS[friend][0]
    if kind == 0:
        return tell_me + end, Cast(rng, habit)
    if kind == 1:
        who = rng.choice([a(animal), hero, f"{hero} the {animal}"])
        return f"{tell_me} about {who}{end}", Cast(rng, habit, hero=hero)
    if kind == 2:
        return f"{tell_me} about {a(thing)}{end}", Cast(rng, habit, thing=thing)
    if kind == 3:
        who = rng.choice([a(animal), hero])
        return f"{tell_me} about {who} and {a(thing)}{end}", Cast(rng, habit, hero=hero, thing=thing)
    if kind == 4:
        pair = rng.choice([f"{hero} and {friend}", f"{a(animal)} and {a(f_animal)}"])
        return f"{tell_me} about {pair}{end}", Cast(rng, habit, hero=hero, friend=friend)
    who = rng.choice([f"{a(animal)}, {a(f_animal)} and {a(thing)}", f"{hero}, {friend} and {a(thing)}"])
    return f"{tell_me} about {who}{end}", Cast(rng, habit, hero=hero, friend=friend, thing=thing)

"""The text the demo model learns from, made by rules from a seed. The same seed gives the same text.

Each *turn* is (task, question, answer). What belongs to the held-out split is decided by the content of the turn
(the operands of a sum, the set of things to order, the cast of a story), not by the order of generation, so a
held-out sum is one that never occurs in training, in any wording.

    python generate.py --split heldout --seed 1 --turns 20      # look at some
"""

import argparse
import hashlib
import random

import stories

START, END = "<|im_start|>", "<|im_end|>"
WORDS = """apple banana bear bell boat bread cat cheese cup dog drum egg fig fish fox frog garden goat hat honey
island jam key kite lamp lemon map moon nut owl pear plum queen rabbit river star tree violin wolf zebra""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
OPPOSITES = [("hot", "cold"), ("big", "small"), ("up", "down"), ("day", "night"), ("open", "closed"), ("old", "new"),
             ("fast", "slow"), ("happy", "sad"), ("left", "right"), ("light", "dark"), ("wet", "dry"), ("full", "empty"),
             ("high", "low"), ("hard", "soft"), ("long", "short"), ("loud", "quiet"), ("near", "far"), ("rich", "poor"),
             ("strong", "weak"), ("early", "late"), ("first", "last"), ("good", "bad"), ("clean", "dirty"), ("in", "out")]
COLOUR_OF = [("the sky", "blue"), ("grass", "green"), ("snow", "white"), ("coal", "black"), ("a lemon", "yellow"),
             ("blood", "red"), ("an orange", "orange"), ("a banana", "yellow"), ("a tomato", "red"), ("a leaf", "green"),
             ("milk", "white"), ("the sun", "yellow"), ("the sea", "blue"), ("chocolate", "brown"), ("a raven", "black"),
             ("an elephant", "grey"), ("a carrot", "orange"), ("a strawberry", "red"), ("a frog", "green"), ("a plum", "purple")]
SOUNDS = [("dog", "woof"), ("cat", "meow"), ("cow", "moo"), ("duck", "quack"), ("sheep", "baa"), ("pig", "oink"),
          ("lion", "roar"), ("bee", "buzz"), ("owl", "hoot"), ("mouse", "squeak"), ("frog", "croak"), ("hen", "cluck")]
YOUNG = [("dog", "puppy"), ("cat", "kitten"), ("cow", "calf"), ("sheep", "lamb"), ("hen", "chick"), ("horse", "foal"),
         ("bear", "cub"), ("duck", "duckling"), ("goat", "kid"), ("frog", "tadpole")]
TOPICS = """the weather, football, Paris, France, music, history, the stock market, quantum physics, Germany, cars,
computers, the president, cooking, dinosaurs, love, the ocean, planets, philosophy, chess, the moon, volcanoes, money,
politics, Shakespeare, robots, electricity, Japan, bicycles, art, medicine, the internet, trains, gold, rainbows""".replace("\n", " ").split(", ")
CAN_DO = "I can add two numbers, put things in order, answer a few small questions and tell a short story."
SYSTEMS = ["You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.", "You are exo.",
           "You are a helpful, respectful and honest assistant.", "Be kind and short."]


def is_heldout(key, one_in=12):
    """Whether content with this key is kept out of training: one in `one_in`, by hash."""
    return hashlib.sha256(key.encode()).digest()[0] % one_in == 0


class Maker:
    """Makes turns of one split. `rng` decides everything else."""

    TASKS = ["sum", "order", "words", "story", "facts", "small", "reading", "chat", "repeat"]
    # Stories are long: a few of them are most of the tokens. `repeat` and `reading` teach to copy from the context,
    # which stories and word problems need and do not teach fast.
    MIXES = {
        "first": [24, 15, 9, 26, 9, 7, 12, 8, 0],
        "second": [22, 18, 9, 12, 7, 9, 20, 6, 14],
        "third": [20, 27, 6, 10, 6, 7, 24, 5, 5],
        "fourth": [18, 24, 6, 20, 6, 7, 22, 6, 4],
    }

    def __init__(self, split, rng, mix="fourth"):
        self.heldout, self.rng, self.weights = split == "heldout", rng, self.MIXES[mix]
        self.habit = 0.7 if mix == "fourth" else 0.0

    def turn(self, task=None):
        """(task, question, answer)."""
        task = task or self.rng.choices(self.TASKS, self.weights)[0]
        question, answer = getattr(self, task)()
        if task != "story" or self.rng.random() < 0.3:
            question = self.rough(question)
        return task, question, answer

    def rough(self, question):
        """People type as they like: without capitals, without a full stop, with a please."""
        r = self.rng.random()
        if r < 0.08 and question[-1] in "?." and question[0].isupper():
            return "Please " + question[0].lower() + question[1:] if question[-1] == "." else question[:-1] + ", please?"
        if r < 0.16:
            return question[0].lower() + question[1:]
        if r < 0.24:
            return question.rstrip("?.!")
        return question[0].lower() + question[1:].rstrip("?.!") if r < 0.30 else question

    def mine(self, make, key, one_in=12):
        """Draws until the content belongs to this split."""
        while True:
            value = make()
            if is_heldout(key(value), one_in) == self.heldout:
                return value

    def number(self):
        return self.rng.randrange(10) if self.rng.random() < 0.3 else self.rng.randrange(100)

    def sum(self):
        x, y = self.mine(lambda: (self.number(), self.number()), lambda p: "sum %d %d" % (min(p), max(p)))
        if self.rng.random() < 0.15:
            thing = self.rng.choice(["apples", "eggs", "stars", "books", "stones", "coins"])
            who = self.rng.choice(list(stories.CHARACTERS))
            he = stories.CHARACTERS[who][1]
            question = f"{who} has {x} {thing} and gets {y} more. How many {thing} does {he} have now?"
            return question, self.steps(x, y, f"{who} has {x + y} {thing}.")
        plus = self.rng.choice([f"{x} + {y}"] * 4 + [f"{x} plus {y}", f"{x}+{y}"])
        question = self.rng.choice([
            f"What is {plus}?", f"What is {plus}?", f"What is {plus}?", f"How much is {plus}?", f"{plus} =", f"{plus}", f"{plus}?",
            f"Add {x} and {y}.", f"What is the sum of {x} and {y}?", f"Calculate {plus}.", f"Work out {plus}.",
            f"Can you add {x} and {y}?", f"What do you get when you add {x} and {y}?", f"{plus} = ?", f"Compute {plus}."])
        return question, self.steps(x, y, f"{x} + {y} = {x + y}.")

    @staticmethod
    def steps(x, y, result):
        """The working, as it is taught at school: ones, tens, together. Small sums need none."""
        if x < 10 and y < 10:
            return result
        ones, tens = x % 10 + y % 10, x // 10 * 10 + y // 10 * 10
        return f"{x % 10} + {y % 10} = {ones} and {x // 10 * 10} + {y // 10 * 10} = {tens}, so {result}"

    def order(self):
        rng = self.rng
        def make():
            top = rng.choice([10, 20, 100, 100])
            return rng.sample(range(top), rng.choice([2, 3, 3, 3, 4, 4, 5]))
        numbers = self.mine(make, lambda n: "order %s" % sorted(n))
        down = rng.random() < 0.3
        if len(numbers) == 2:
            x, y = numbers
            if down:
                question = rng.choice([f"Which is smaller, {x} or {y}?", f"What is smaller, {x} or {y}?"])
                return question, f"{min(x, y)} is smaller than {max(x, y)}."
            question = rng.choice([f"Which is larger, {x} or {y}?", f"Which is bigger, {x} or {y}?", f"What is larger, {x} or {y}?"])
            return question, f"{max(x, y)} is larger than {min(x, y)}."
        text = ", ".join(map(str, numbers))
        if rng.random() < 0.25:
            text = text[: text.rindex(",")] + " and " + str(numbers[-1])
        if down:
            question = rng.choice([f"Put {text} in order, largest first.", f"Sort {text} from largest to smallest.",
                                   f"Order {text} from big to small.", f"Sort {text} in descending order."])
        else:
            question = rng.choice([f"Put {text} in order.", f"Put {text} in order.", f"Sort {text}.", f"Order {text}.",
                                   f"Sort these numbers: {text}.", f"Put these numbers in order: {text}.", f"Can you sort {text}?",
                                   f"Sort {text} from smallest to largest.", f"Put {text} in order, smallest first."])
        return question, ", ".join(map(str, sorted(numbers, reverse=down)))

    def words(self):
        rng = self.rng
        words = self.mine(lambda: rng.sample(WORDS, rng.choice([3, 3, 4])), lambda w: "words %s" % sorted(w))
        text = ", ".join(words)
        question = rng.choice([f"Put {text} in order.", f"Put {text} in alphabetical order.", f"Sort {text}.", f"Sort these words: {text}.",
                               f"Order {text} alphabetically.", f"Put these words in order: {text}.", f"Sort {text} by alphabet."])
        return question, ", ".join(sorted(words))

    def story(self):
        while True:
            question, cast = stories.ask(self.rng, self.habit)
            if is_heldout(cast.key(), 20) == self.heldout:
                return question, stories.tell(self.rng, cast)

    def plain_story(self):
        cast = self.mine(lambda: stories.Cast(self.rng, self.habit), lambda c: c.key(), 20)
        return stories.tell(self.rng, cast)

    def facts(self):
        """Facts by heart: there is nothing to hold out."""
        rng, kind = self.rng, self.rng.randrange(8)
        if kind == 0:
            i, step = rng.randrange(7), rng.choice([1, -1])
            where = "after" if step == 1 else "before"
            other = DAYS[(i + step) % 7]
            question = rng.choice([f"What day comes {where} {DAYS[i]}?", f"Which day is {where} {DAYS[i]}?", f"What day is {where} {DAYS[i]}?"])
            return question, f"{other} comes {where} {DAYS[i]}."
        if kind == 1:
            i, step = rng.randrange(12), rng.choice([1, -1])
            where = "after" if step == 1 else "before"
            question = rng.choice([f"What month comes {where} {MONTHS[i]}?", f"Which month is {where} {MONTHS[i]}?"])
            return question, f"{MONTHS[(i + step) % 12]} comes {where} {MONTHS[i]}."
        if kind in (2, 3):
            pair = rng.choice(OPPOSITES)
            x, y = pair if rng.random() < 0.5 else pair[::-1]
            return rng.choice([f"What is the opposite of {x}?", f"Opposite of {x}?", f"What is the opposite of {x}?"]), f"The opposite of {x} is {y}."
        if kind == 4:
            thing, colour = rng.choice(COLOUR_OF)
            verb = rng.choice([f"What colour is {thing}?", f"What color is {thing}?", f"Which colour has {thing}?"])
            return verb, f"{thing[0].upper() + thing[1:]} is {colour}."
        if kind == 5:
            animal, sound = rng.choice(SOUNDS)
            return rng.choice([f"What does a {animal} say?", f"What sound does a {animal} make?"]).replace(" a owl", " an owl"), \
                f"A {animal} says {sound}.".replace("A owl", "An owl")
        if kind == 6:
            animal, young = rng.choice(YOUNG)
            return rng.choice([f"What is a young {animal} called?", f"What do you call a young {animal}?"]), f"A young {animal} is called a {young}."
        return rng.choice([
            ("How many days are in a week?", "There are seven days in a week."),
            ("Name the days of the week.", ", ".join(DAYS) + "."),
            ("What are the days of the week?", ", ".join(DAYS) + "."),
            ("How many months are in a year?", "There are twelve months in a year."),
            ("Name the months of the year.", ", ".join(MONTHS) + "."),
            ("How many legs does a spider have?", "A spider has eight legs."),
            ("How many legs does a dog have?", "A dog has four legs."),
            ("How many legs does a bird have?", "A bird has two legs."),
            ("How many hours are in a day?", "There are 24 hours in a day."),
            ("How many minutes are in an hour?", "There are 60 minutes in an hour."),
        ])

    def small(self):
        """Tables and counting, all of which training sees."""
        rng, kind = self.rng, self.rng.randrange(5)
        if kind == 0:
            x = rng.randrange(21)
            y = rng.randrange(x + 1)
            return rng.choice([f"What is {x} - {y}?", f"{x} - {y}", f"What is {x} minus {y}?", f"Take {y} from {x}.", f"{x} - {y} = ?"]), f"{x} - {y} = {x - y}."
        if kind == 1:
            x, y = rng.randrange(11), rng.randrange(11)
            return rng.choice([f"What is {x} x {y}?", f"{x} x {y}", f"What is {x} times {y}?", f"Multiply {x} by {y}.", f"What is {x} * {y}?"]), f"{x} x {y} = {x * y}."
        if kind == 2:
            x = rng.randrange(99)
            return rng.choice([f"What number comes after {x}?", f"What comes after {x}?"]), f"{x + 1} comes after {x}."
        if kind == 3:
            x = rng.randrange(1, 100)
            return rng.choice([f"What number comes before {x}?", f"What comes before {x}?"]), f"{x - 1} comes before {x}."
        x = rng.choice([1, 1, rng.randrange(60)])
        y = x + rng.randrange(3, 10)
        return rng.choice([f"Count from {x} to {y}.", f"Can you count from {x} to {y}?"] + ([f"Count to {y}."] if x == 1 else [])), \
            ", ".join(map(str, range(x, y + 1)))

    def reading(self):
        """A question about the sentences before it."""
        rng, kind = self.rng, self.rng.randrange(4)
        def make():
            return rng.sample(list(stories.CHARACTERS), 3), rng.sample(stories.OBJECTS, 3), rng.sample(list(stories.PLACES), 3)
        names, things, places = self.mine(make, lambda m: "reading %s" % (m,))
        colours, i, n = rng.sample(stories.COLOURS, 3), rng.randrange(2), rng.choice([2, 2, 3])
        i = rng.randrange(n)
        if kind == 0:
            facts = [f"{w} has the {t}." for w, t in zip(names, things)][:n]
            question, answer = rng.choice([
                (f"Who has the {things[i]}?", f"{names[i]} has the {things[i]}."),
                (f"What does {names[i]} have?", f"{names[i]} has the {things[i]}.")])
        elif kind == 1:
            facts = [f"The {t} is {stories.PLACES[p]}." for t, p in zip(things, places)][:n]
            question, answer = f"Where is the {things[i]}?", f"The {things[i]} is {stories.PLACES[places[i]]}."
        elif kind == 2:
            facts = [f"The {t} is {c}." for t, c in zip(things, colours)][:n]
            question, answer = f"What colour is the {things[i]}?", f"The {things[i]} is {colours[i]}."
        else:
            facts = [f"{w} is {stories.PLACES[p]}." for w, p in zip(names, places)][:n]
            question, answer = rng.choice([
                (f"Where is {names[i]}?", f"{names[i]} is {stories.PLACES[places[i]]}."),
                (f"Who is {stories.PLACES[places[i]]}?", f"{names[i]} is {stories.PLACES[places[i]]}.")])
        return " ".join(facts + [question]), answer

    def repeat(self):
        """The question's own words again: copying, with nothing to know."""
        rng = self.rng
        pool = WORDS + stories.OBJECTS + stories.COLOURS + list(stories.PLACES) + list(stories.CHARACTERS) + ["hello", "world"]
        def make():
            return [rng.choice(pool) if rng.random() < 0.9 else str(rng.randrange(100)) for _ in range(rng.randrange(1, 9))]
        text = rng.choice([" ", " ", ", "]).join(self.mine(make, lambda w: "repeat %s" % w))
        question = rng.choice([f"Repeat: {text}", f"Repeat after me: {text}", f"Say {text}.", f"Say: {text}", f"Repeat {text}."])
        return question, text

    def chat(self):
        rng, kind = self.rng, self.rng.randrange(8)
        if kind == 0:
            hello = rng.choice(["Hello", "Hi", "Hey", "Good morning", "Good evening", "Hello!", "Hi!", "Hello there!", "Hi there", "hello", "hi"])
            return hello, "Hello! What can I do for you?"
        if kind == 1:
            return rng.choice(["Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "Tell me about yourself.", "Are you a human?", "Are you a robot?"]), \
                "I am the exo demo model, a tiny language model that can be split over several machines."
        if kind == 2:
            return rng.choice(["What can you do?", "What do you know?", "Help", "How can you help me?", "What should I ask you?", "Can you help me?"]), CAN_DO
        if kind == 3:
            return rng.choice(["Thank you!", "Thanks", "Thank you very much.", "Great, thanks!", "Well done!"]), "You are welcome!"
        if kind == 4:
            return rng.choice(["Goodbye", "Bye", "See you!", "Good night", "Goodbye!"]), "Goodbye! It was nice to talk to you."
        if kind == 5:
            return rng.choice(["How are you?", "How are you today?", "How do you do?"]), "I am fine, thank you. How can I help you?"
        if kind == 6:
            return rng.choice(["What is exo?", "Tell me about exo.", "What does exo do?"]), \
                "exo turns the machines you own into one computer that runs a language model."
        topic = rng.choice(TOPICS)
        question = rng.choice([f"What is {topic}?", f"Tell me about {topic}.", f"Explain {topic}.", f"What do you think about {topic}?",
                               f"Write a poem about {topic}.", f"What is the capital of {topic}?", f"Who invented {topic}?",
                               f"How does {topic} work?", f"Why is {topic} important?", f"Do you like {topic}?"])
        return question, "I do not know much about that, because I am a tiny model. " + CAN_DO


def render(question, answer):
    """One turn as the chat template writes it. (The text the user wrote, the text the model writes.)"""
    return f"{START}user\n{question}{END}\n{START}assistant\n", f"{answer}{END}\n"


def system_prefix(text):
    """A system message as the chat template writes it."""
    return f"{START}system\n{text}{END}\n"


def document(maker):
    """A stretch of text that starts a row: [(text, weight in the loss)]. Later turns follow by `render`."""
    r = maker.rng.random()
    if r < 0.12:
        return [(maker.plain_story() + END + "\n", 1.0)]
    return [(system_prefix(maker.rng.choice(SYSTEMS)), 0.0)] if r < 0.3 else []


def heldout_documents(seed, turns, plain):
    """The held-out text: single-turn conversations and plain stories, never seen in training."""
    maker = Maker("heldout", random.Random(f"heldout {seed}"))
    docs = ["".join(render(*maker.turn()[1:])).rstrip("\n") for _ in range(turns)]
    return docs + [maker.plain_story() for _ in range(plain)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", choices=["train", "heldout"], default="train")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args()
    maker = Maker(args.split, random.Random(args.seed))
    for _ in range(args.turns):
        print("%-8s %s\n         -> %s" % maker.turn())

"""Judges the lines of the example `answers`: every answer must be of its schema, and most must have ended by themselves."""

import json
import re
import sys
from collections import Counter

from jsonschema import Draft202012Validator

ended, total, wrong = Counter(), Counter(), []
# All formats of this draft; the general one has those of draft 3 among them.
checker = Draft202012Validator.FORMAT_CHECKER
for line in sys.stdin:
    case = json.loads(line)
    # It knows no second 60; the suite has the instances for that.
    case["answer"] = re.sub(r"(:[0-5]\d):60", r"\1:59", case["answer"])
    total[case["vocabulary"]] += 1
    ended[case["vocabulary"]] += not case["is_cut"]
    try:
        errors = list(Draft202012Validator(case["schema"], format_checker=checker).iter_errors(json.loads(case["answer"])))
    except json.JSONDecodeError as error:
        errors = [error]
    if errors:
        wrong.append((case, errors[0]))
for vocabulary, count in sorted(total.items()):
    print(f"{count} answers from {vocabulary} tokens, {100 * ended[vocabulary] / count:.1f} % ended by themselves")
for case, error in wrong[:10]:
    print(f"not of its schema: {case['answer']!r}: {error}\n  {json.dumps(case['schema'])}")
print(f"{sum(total.values())} answers judged, {len(wrong)} of them not of their schema")
few = [vocabulary for vocabulary, count in total.items() if ended[vocabulary] < 0.8 * count]
sys.exit(1 if wrong or few or not total else 0)

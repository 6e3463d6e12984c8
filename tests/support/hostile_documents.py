"""Documents to show on a page, some of which try to be more than text."""

HOSTILE = [
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 2">',
    "</textarea></pre></details><iframe src='https://example.org'></iframe>",
    "{{ 7 * 7 }} {% raw %} ${window.hacked = 3} <!-- <em>",
    "\u202egnol \u0000\u0007 \ufeff \U0001f600\u200d cafe\u0301 \ufffe",
]
DOCUMENTS = [
    {
        "_id": "rain",
        "title": "Rainbows",
        "text": "A rainbow is caused by refraction of light in drops.",
        "lang": "en",
    },
    {"_id": "trout", "title": "Rainbow trout", "text": "The rainbow trout is a fish of rivers.", "lang": "en"},
    {"_id": "light", "title": "Light", "text": "Light travels in waves. A prism splits it into colours.", "lang": "en"},
    {"_id": "bogen", "title": "Regenbogen", "text": "Ein Regenbogen entsteht durch Brechung.", "lang": "de"},
    {"_id": "sun", "title": "The sun", "text": "The sun gives light and warmth to the earth.", "lang": "en"},
    {
        "_id": "long",
        "title": "Notes",
        "text": "Nothing is written here. " * 40 + "Comets glow when they come near. " + "Nor is anything there. " * 40,
        "lang": "en",
    },
    *(
        {
            "_id": f"h{at}<b>'\"&",
            "title": f"rainbow {text}",
            "text": f"rainbow {text}",
            "url": f"javascript:{at}",
            "lang": "x",
        }
        for at, text in enumerate(HOSTILE)
    ),
]

"""A thousand texts of several languages, for tokenizers."""

import random

SENTENCES = (
    *("a photo of a cat", "", "   ", "It's John's 2nd photo, isn't it?! $5.00"),
    *("I'LL WE'VE YOU'RE they'd I'm", "foo_bar-baz 1234567", "tab\tnew\nline"),
    *("Ein schöner Hund läuft über die Straße.", "Ça va? L'élève est là-bas."),
    *("El niño comió piñas", "Пример: кошка на крыше", "Η γάτα κοιμάται. ΟΔΥΣΣΕΥΣ"),
    *("İstanbul'da IĞDIR", "你好,世界!这是一张猫的照片", "猫の写真です。ネコ"),
    *("고양이 사진", "مرحبا بالعالم", "नमस्ते दुनिया", "שלום עולם", "ภาพถ่ายแมว"),
    *(
        "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji ❤️",
        "&lt;b&gt;bold&amp;amp; &eacute;",
        "ﬁne ﬂower Ⅷ ½ ＦＵＬＬ",
    ),
    *(
        "â€œmojibakeâ€\x9d schÃ¶n",
        "zero\u200bwidth\u200d",
        "cafe\u0301 café",
        "“curly”",
    ),
    *("<start_of_text> hi <end_of_text>", "<|endoftext|>", "word " * 100, "x" * 300),
)
_RANGES = (
    *((0x20, 0x7F), (0xA1, 0x250), (0x370, 0x500), (0x5D0, 0x5EB), (0x620, 0x64B)),
    *((0x905, 0x93A), (0x3041, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3)),
    *((0x1F300, 0x1F650),),
)


def thousand():
    rng = random.Random(0)
    words = " ".join(SENTENCES[:24]).split()
    found = list(SENTENCES)
    while len(found) < 600:
        found.append(" ".join(rng.choices(words, k=rng.randrange(1, 25))))
    while len(found) < 1000:
        low, high = rng.choice(_RANGES)
        letters = [chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 40))]
        found.append("".join(x + " " * (rng.random() < 0.2) for x in letters))
    return found

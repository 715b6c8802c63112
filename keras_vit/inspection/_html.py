"""A report as one page: pictures inside, nothing fetched, no scripts."""

import base64
import html

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2733;
  --faint: #5b6b7a; --line: #d7dee5; --card: #f5f7f9; --bar: #2f6fb7; }
@media (prefers-color-scheme: dark) { :root { --back: #12181f; --text: #e4eaf0;
  --faint: #9fb0c0; --line: #2c3742; --card: #1b232c; --bar: #6aa9ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 3rem;
  background: var(--back); color: var(--text);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .4rem; }
p { margin: .4rem 0 .8rem; max-width: 46rem; }
.faint, figcaption { color: var(--faint); font-size: .9rem; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { font-weight: 600; width: 30%; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
figure { margin: .6rem 0; max-width: 100%; }
.row > figure { flex: 1 1 17rem; margin: 0; }
figure img { display: block; max-width: 100%; height: auto; margin: 0 auto;
  background: #fff; border: 1px solid var(--line); border-radius: 6px;
  padding: .4rem; }
.card { flex: 1 1 17rem; max-width: 30rem; display: flex; gap: .8rem;
  background: var(--card); border-radius: 6px; padding: .7rem; }
.card img { width: 6rem; height: 6rem; object-fit: contain; flex: none; }
.card div { flex: 1; min-width: 0; font-size: .9rem; }
.card ol { list-style: none; margin: .2rem 0 0; padding: 0; }
.card li { display: grid; grid-template-columns: 1fr auto; gap: 0 .5rem; }
.card i { grid-column: 1 / -1; height: 3px; margin-bottom: .25rem;
  background: linear-gradient(var(--bar), var(--bar)) no-repeat var(--line); }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="faint">{subtitle}</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def page(title, subtitle, parts):
    """Returns a page as a string; parts are strings of HTML."""
    return _PAGE.format(
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        style=_STYLE,
        body="\n".join(parts),
    )


def section(heading, text, *parts):
    said = [f"<p>{html.escape(text)}</p>"] if text else []
    inside = "\n".join([*said, *parts])
    return f"<section>\n<h2>{html.escape(heading)}</h2>\n{inside}\n</section>"


def table(rows):
    cells = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f"<td>{html.escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table>\n{cells}\n</table>"


def row(parts):
    return '<div class="row">\n' + "\n".join(parts) + "\n</div>"


def figure(png, alt, caption=""):
    under = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f"<figure>\n{image(png, alt)}\n{under if caption else ''}</figure>"


def image(png, alt):
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def predictions(png, name, guesses):
    """One image with its best classes: `[(class, probability), ...]`."""
    items = "\n".join(
        f"<li><span>{html.escape(label)}</span><span>{share:.1%}</span>"
        f'<i style="background-size:{100 * share:.1f}% 100%"></i></li>'
        for label, share in guesses
    )
    return (
        f'<div class="card">{image(png, name)}\n<div>'
        f"<strong>{html.escape(name)}</strong>\n<ol>\n{items}\n</ol></div></div>"
    )

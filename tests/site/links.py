"""Reads the links and anchors of Markdown as GitHub shows it, and of HTML."""

import html.parser
import re
import urllib.parse


def without_code(text):
    """Returns Markdown without fenced, indented and inline code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    return re.sub(r"`[^`\n]*`", "", text)


def markdown_links(text):
    """Returns the targets of the links and images of a page."""
    return re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", without_code(text))


def markdown_anchors(text):
    """Returns the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    found = set()
    for heading in re.findall(r"^#+ (.*)", text, re.M):
        anchor = re.sub(r"[^\w -]", "", heading.strip()).lower()
        anchor, count = anchor.replace(" ", "-"), 0
        while f"{anchor}-{count}" if count else anchor in found:
            count += 1
            if f"{anchor}-{count}" not in found:
                anchor = f"{anchor}-{count}"
                break
        found.add(anchor)
    return found


def problem_of_url(url):
    """Returns what is wrong with the URL of another site, or None."""
    if re.search(r"[\s<>\"{}|\\^`]", url):
        return "it has a character that must be escaped"
    parts = urllib.parse.urlparse(url)
    if parts.scheme != "https":
        return "it does not begin with https://"
    if not re.fullmatch(r"([a-z0-9-]+\.)+[a-z]{2,}", parts.netloc):
        return f"{parts.netloc!r} is no host"
    if parts.netloc == "github.com" and len(parts.path.split("/")) < 3:
        return "it names no repository"
    return None


class Page(html.parser.HTMLParser):
    """The links, sources and ids of an HTML page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "a":
            self.ids.add(attributes.get("name"))
        for name in ("href", "src"):
            if attributes.get(name):
                self.links.append(attributes[name])

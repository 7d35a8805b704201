"""Pages of the C++ and C interfaces, from the comments in include/fulmen.

A group is a comment and the declarations behind it, up to a blank line or the next comment. A group
without any comment is an undocumented symbol, which is an error.
"""

import re

SYMBOL = re.compile(
    r"(?:struct|class|union|enum "
    r"class|enum)\s+(?:FULMEN_API\s+)?(\w+)|\bconstexpr\s+[\w:<>\s]+?(\w+)\s*[=(]|(\w+)\("
)
TEMPLATE = re.compile(r"template <[^>]*>")
SKIPPED = re.compile(r'#|namespace fulmen|}\s*// namespace|}\s*$|extern "C"')
NAMELESS = re.compile(r"\b(?:if|sizeof|defined|operator\w*|__attribute__)$")


class Group:
    def __init__(self, line):
        self.line, self.comment, self.code = line, [], []

    def names(self):
        """Of what is declared at the first level."""
        found, depth = [], 0
        for line in self.code:
            if depth == 0 and (match := SYMBOL.search(TEMPLATE.sub("", line.split("//")[0]))):
                name = next(one for one in match.groups() if one)
                if not NAMELESS.search(name) and name not in found:
                    found.append(name)
            depth += line.count("{") - line.count("}") + line.count("(") - line.count(")")
        return found

    def documented(self):
        return bool(self.comment) or any("//" in line or "/*" in line for line in self.code)


def groups(text):
    """The header's own comment, then its groups."""
    found, group, depth, in_comment = [], None, 0, False
    for number, line in enumerate(text.split("\n"), 1):
        starts = depth == 0 and line.startswith(("//", "/*"))
        comment = in_comment or starts
        if line.startswith("/*"):
            in_comment = True
        if in_comment and "*/" in line:
            in_comment = False
        if depth == 0 and not comment and (not line.strip() or SKIPPED.match(line)):
            group = None
            continue
        if group is None or (comment and group.code):
            group = Group(number)
            found.append(group)
        if comment:
            group.comment.append(re.sub(r"^(//|/\*|\s\*/?)\s?|\s*\*/$", "", line).rstrip())
        else:
            group.code.append(line)
            code = re.sub(r'//.*|/\*.*?\*/|"[^"]*"', "", line)
            depth += code.count("{") - code.count("}") + code.count("(") - code.count(")")
    return found


def prose(comment):
    """Comments are words, not Markdown."""
    escaped = re.sub(r"([<>*_\[\]`|#])", r"\\\1", "\n".join(comment))
    return re.sub(r"docs/(\w+)\\?_?\.md", r"docs/\1.md", escaped)


def page(title, headers, language):
    """Markdown, and a line for each symbol without a comment."""
    parts, undocumented = [f"# {title}\n"], []
    for header in headers:
        parts.append(f"## {header.name}\n")
        for group in groups(header.read_text()):
            names = group.names()
            if not group.code:
                parts.append(prose(group.comment) + "\n")
                continue
            if not group.documented():
                undocumented += [
                    f"include/fulmen/{header.name}:{group.line}: {name} has no comment"
                    for name in names
                ]
            if names:
                parts.append("### " + ", ".join(f"`{name}`" for name in names) + "\n")
            parts.append(prose(group.comment) + "\n")
            parts.append("\n".join([f"```{language}", *group.code, "```\n"]))
    return "\n".join(parts), undocumented

"""Writes jinja_cases.json: small templates, feature by feature, with what jinja2 makes of them. Needs jinja2 3.1.

A case whose "error" is set must fail with ours too; the text of ours must then contain that of jinja2 where "same" is true.
"""
import json
import pathlib

import jinja_reference

CONTEXT = {
    "s": "Hello, World", "u": "Zürich 日本語 😀", "empty": "", "pad": "  two words \n", "i": 7, "neg": -7, "f": 2.5,
    "big": 18446744073709551615, "t": True, "n": None, "l": [3, 1, 2], "words": ["b", "a", "C"], "nested": [[1, 2], [3]],
    "d": {"b": 1, "a": [1, {"x": None}], "C": "text"}, "items_key": {"items": [1], "keys": 2, "_p": 3},
    "users": [{"name": "Ann", "age": 30, "tags": {"k": 1}}, {"name": "bob", "age": 25}, {"name": "Cid", "age": 30}],
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}, {"role": "user", "content": "<b>"}],
    "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}],
    "floats": [0.1, 1e16, 1e-5, 123456789.125, 1e300, -0.0, 100.0], "mixed": [1, "a", 2.5, None, True, [1], {"k": 1}],
}

# Expressions, each printed.
EXPRESSIONS = r"""
1 + 2 | 7 // 2 | -7 // 2 | 7 % 3 | -7 % 3 | 7 % -3 | 2 ** 10 | 2 ** -1 | 7 / 2 | 6 / 2 | 1.5 + 1 | 7.5 // 2 | -7.5 % 2 | 0.1 + 0.2
1e3 | 1_000 | 0x1f | 0b101 | 0o17 | 1.0 | 10 ** 20 | true + 1 | -3 | +3 | - 2 ** 2 | 2 + 3 * 4 | (2 + 3) * 4 | 1 / 0 | 1 // 0 | 1 % 0
2 ** 3 ** 2 | 10 - 3 - 2 | not true | not none | 1 and 2 | 0 and 2 | 0 or 2 | 1 or 2 | none or "x" | "" or [] | big | big + 1
1 < 2 | 1 < 2 < 3 | 1 < 3 < 2 | 3 > 2 >= 2 | 1 == 1.0 | 1 == true | "a" == "a" | "a" < "b" | [1, 2] < [1, 3] | [1] == [1] | {"a": 1} == {"a": 1.0}
1 < "a" | none < 1 | "1" == 1 | none == none | x == y | x != 1 | "a" in "abc" | "z" not in "abc" | 1 in l | 9 not in l | "a" in d | 1 in d | 1 in "abc"
"a" in x | 2 in (1, 2) | 3 in range(5) | "a" ~ 1 ~ none ~ true ~ 1.5 ~ [1, "b"] | "a" + "b" | "a" * 3 | 3 * "ab" | [1] * 2 | [1] + [2] | (1,) + (2,) | "a" + 1 | 1 + "a" | [1] + "a" | none + 1 | x + 1
"yes" if t else "no" | "yes" if n else "no" | "yes" if n | ("yes" if n) is defined | 1 if 0 else 2 if 0 else 3
s[0] | s[-1] | s[99] | s[1:4] | s[:-1] | s[::-1] | s[::2] | s[5:1] | s[-3:] | s[10:2:-2] | u[1] | u[-1] | u[7:10] | u[::-1] | u | length | l[0] | l[-1] | l[5] | l[5] is defined | l[1:] | l[::-1] | l[-2:] | l[1:0] | l[0:3:2] | l["a"] | (1, 2, 3)[1:] | range(10)[2:5] | range(10)[::-3] | range(5)[1] | range(5)[9]
l[:100] | l[-100:] | l[100:] | s[0:0] | l[::0] | l["a":] | d[1:] | n[1:] | x[1:] | s[1.5] | l[true]
d.b | d["b"] | d.zz | d["zz"] | d.zz.yy | d.a[1].x | d.a.1 | d.a[0] | x | x.y | x["y"] | n.y | n.y.z | i.y | s.foo | s.foo() | d.foo() | x() | i() | users[0].name | users[0]["tags"]["k"] | users[1].tags is defined
items_key.items | items_key["items"] | items_key["keys"] | items_key._p | items_key.get("items") | d.__class__ | d["__class__"] | s.__class__.mro | d._x
d.items() | d.keys() | d.values() | d.items() | list | d.keys() | list | d.get("b") | d.get("z") | d.get("z", 5) | d.get() | d.pop("b") | d.update({}) | l.append(1) | l.index(1) | l.index(9) | l.count(3) | l.copy() | d.copy() == d | (1, 2).index(2) | l.sort()
s.upper() | s.lower() | s.title() | s.capitalize() | "hello world".title() | "it's".title() | "ß".upper() | "ÀÉ".lower() | "ΑΣ".lower() | s.swapcase() | u.upper() | "éa".capitalize() | pad.strip() | pad.lstrip() | pad.rstrip() | "xxaxx".strip("x") | "xyaxy".lstrip("yx") | "xyaxy".rstrip("xy") | " \u00a0x\u3000".strip() | "x".strip(none)
"a,b,c".split(",") | "a,b,c".split(",", 1) | " a  b ".split() | " a  b c ".split(none, 1) | "a,b,c".rsplit(",", 1) | " a b c ".rsplit(none, 1) | "abc".split("") | "".split() | "".split(",") | "a--b".split("--") | "abc".split("z") | "a\nb\r\nc".splitlines() | "a\nb\n".splitlines(true) | "a b".split(sep=" ") | "a b c".split(maxsplit=1) | "abc".split(1)
"abc".startswith("a") | "abc".startswith(("x", "a")) | "abc".endswith("bc") | "abc".startswith("b", 1) | "abc".startswith("") | "abc".startswith(1) | "abc".endswith(["c"]) | "abc".startswith(x)
"aXbX".replace("X", "-") | "aXbX".replace("X", "-", 1) | "abc".replace("", "-") | "äö".replace("", "-", 2) | "abc".replace("a") | "abca".find("a", 1) | "abc".find("z") | u.find("日") | "abcabc".rfind("b") | "abc".index("z") | "aXbX".count("X") | "abc".count("") | "abc".rindex("c")
"-".join(["a", "b"]) | "-".join("abc") | "-".join([1]) | "".join([]) | "-".join(d) | "a=b".partition("=") | "ab".partition("=") | "a=b=c".rpartition("=") | "abc".removeprefix("a") | "abc".removesuffix("bc") | "7".zfill(3) | "-7".zfill(4) | "a".center(5) | "ab".center(5, "*") | "a".ljust(3) ~ "|" | "a".rjust(3, "0")
"abc".isalpha() | "a1".isalnum() | "12".isdigit() | "".isdigit() | " \n".isspace() | "abc".islower() | "ABC".isupper() | "1".isupper() | "é".isalpha() | "é".isascii()
"{} and {}".format(1, "b") | "{1}{0}".format("a", "b") | "{x}-{y}".format(x=1, y=2) | "{:>5}|{:<5}|{:^5}".format("a", "b", "c") | "{:05d}".format(42) | "{:.2f}".format(3.14159) | "{:,}".format(1234567) | "{:x}".format(255) | "{:#x}".format(255) | "{!r}".format("a") | "{0[a]}".format({"a": 1}) | "{0.b}".format({"b": 1}) | "{{}}".format() | "{}".format() | "{:+d}".format(5) | "{:e}".format(12345.678) | "{:%}".format(0.25) | "{:*^9}".format("mid") | "{:{w}}".format("a", w=4) ~ "|" | "{:d}".format("a") | "{:.1f}".format(1) | "{:5}".format(true) | "{}".format(none) | "{:5}".format(none)
"%s is %d" % ("a", 5) | "%05.2f" % 3.14159 | "%s" % "x" | "%s" % [1, 2] | "%d%%" % 50 | "%(a)s-%(b)d" % {"a": 1, "b": 2} | "%s %s" % "a" | "%s" % (1, 2) | "%d" % "a" | "%x" % 255 | "%5s|" % "a" | "%-5s|" % "a" | "%r" % "a" | "%+d" % 5 | "%d" % 2.9 | "%.3s" % "abcdef" | "%e" % 12345.678 | "%g" % 0.0001 | "%c" % 65 | "%i" % true | "%q" % 1 | "%" % 1 | "%03d" % -5
"""

FILTERS = r"""
s|upper ;; s|lower ;; s|title ;; "foo-bar (baz)"|title ;; s|capitalize ;; pad|trim ;; "xax"|trim("x") ;; 5|trim ;; x|trim ;; n|upper ;; s|length ;; u|length ;; l|length ;; d|length ;; x|length ;; 5|length ;; n|length ;; l|count ;; range(3)|length ;; d.items()|length
l|first ;; l|last ;; []|first ;; []|first is defined ;; s|first ;; s|last ;; d|first ;; x|first ;; 5|first ;; l|join ;; l|join(", ") ;; users|join(", ", attribute="name") ;; [1, none, true]|join("-") ;; s|join("-") ;; x|join ;; 5|join ;; l|join(1)
x|default("d") ;; ""|default("d") ;; ""|default("d", true) ;; n|default("d") ;; n|default("d", true) ;; x|default ;; 0|d(5, boolean=true) ;; x.y|default("d") ;; d.zz|default(d.b)
l|list ;; "abc"|list ;; d|list ;; x|list ;; 5|list ;; d|items|list ;; x|items|list ;; 5|items ;; l|sort ;; l|sort(reverse=true) ;; words|sort ;; words|sort(case_sensitive=true) ;; users|sort(attribute="age")|map(attribute="name")|list ;; users|sort(attribute="age,name")|map(attribute="name")|list ;; mixed|sort ;; d|sort ;; x|sort ;; users|sort(attribute="nope")
d|dictsort ;; d|dictsort(true) ;; {"a": 2, "b": 1}|dictsort(by="value") ;; {"a": 2, "b": 1}|dictsort(reverse=true) ;; d|dictsort(false, "value") ;; l|dictsort ;; l|reverse|list ;; "abc"|reverse ;; u|reverse ;; range(3)|reverse|list ;; 5|reverse
[1, 1, 2, "a", "A"]|unique|list ;; [1, 1, 2, "a", "A"]|unique(true)|list ;; users|unique(attribute="age")|map(attribute="name")|list ;; nested|unique|list ;; l|min ;; l|max ;; words|min ;; words|max ;; users|max(attribute="age") ;; []|min ;; mixed|max ;; l|sum ;; users|sum(attribute="age") ;; [[1], [2]]|sum(start=[]) ;; ["a"]|sum ;; []|sum ;; l|sum(start=10)
words|map("upper")|list ;; words|map("upper")|join ;; users|map(attribute="name")|list ;; users|map(attribute="tags.k")|list ;; users|map(attribute="tags", default=0)|list ;; nested|map("length")|list ;; nested|map("join", "+")|list ;; l|map ;; l|map("nope")|list ;; x|map("upper")|list ;; nested|map(attribute=0)|list ;; nested|map("first")|list
l|select("odd")|list ;; l|select(">", 1)|list ;; l|reject("even")|list ;; [0, 1, ""]|select|list ;; [0, 1, ""]|reject|list ;; l|select("in", [1, 2])|list ;; l|select("equalto", 2)|list ;; l|select("nope")|list ;; mixed|select("string")|list ;; mixed|select("number")|list ;; mixed|select("mapping")|list ;; mixed|select("iterable")|list ;; l|select("divisibleby", 3)|list
users|selectattr("tags")|map(attribute="name")|list ;; users|selectattr("age", "equalto", 30)|map(attribute="name")|list ;; users|rejectattr("age", "gt", 26)|map(attribute="name")|list ;; users|selectattr("tags", "defined")|list|length ;; users|selectattr("tags.k", "defined")|list ;; users|selectattr ;; messages|selectattr("role", "equalto", "user")|list|length ;; messages|rejectattr("role", "in", ["user"])|list
"aXb"|replace("X", "-") ;; "aaa"|replace("a", "b", 2) ;; 515|replace(5, 6) ;; x|replace("a", "b") ;; "a"|replace("a") ;; "a\nb\n\nc"|indent ;; "a\nb"|indent(2) ;; "a\nb"|indent(2, true) ;; "a\n\nb"|indent(2, blank=true) ;; "a\nb"|indent("> ") ;; "a\nb"|indent(width=1, first=true) ;; 5|indent ;; x|indent
"42"|int ;; "x"|int ;; "x"|int(5) ;; "4.7"|int ;; 4.7|int ;; -4.7|int ;; n|int ;; "ff"|int(0, 16) ;; "0x1A"|int(0, 16) ;; " 7 "|int ;; "1_0"|int ;; ""|int ;; true|int ;; x|int ;; "1e3"|int ;; "1.5"|float ;; "x"|float ;; "x"|float(2.0) ;; 3|float ;; n|float ;; " -1e3 "|float ;; "inf"|float ;; "nan"|float ;; 5|string ;; n|string ;; l|string ;; x|string
-5|abs ;; -2.5|abs ;; "a"|abs ;; 2.5|round ;; 3.5|round ;; 2.567|round(2) ;; 2.5|round(method="ceil") ;; 2.5|round(0, "floor") ;; 5|round ;; 1234|round(-2) ;; 2.675|round(2) ;; 2.5|round(0, "x") ;; "a"|round ;; 1.25|round(1) ;; 0.5|round|int ;; 42.55|round(1, "floor")
[1, 2, 3, 4, 5]|batch(2)|list ;; [1, 2, 3]|batch(2, 0)|list ;; [1, 2, 3, 4, 5]|slice(2)|list ;; [1, 2, 3]|slice(2, "x")|list ;; users|groupby("age")|list ;; users|groupby("age")|map("first")|list ;; users|groupby("age")|map(attribute="grouper")|list ;; "a b c"|wordcount ;; "foo bar baz qux"|truncate(9) ;; "foo bar baz qux"|truncate(9, true) ;; "foo"|truncate(9) ;; "foo bar baz qux"|truncate(9, false, "!", 0) ;; "ab"|center(6) ~ "|" ;; "%s-%s"|format("a", 1) ;; "%(a)s"|format(a=1)
s|attr("upper") is defined ;; d|attr("b") is defined ;; d|attr("get") is defined ;; "<b>"|escape ;; "<b>&'\""|e ;; "<b>"|safe ;; ("<b>"|safe) + "<i>" ;; "<i>" + ("<b>"|safe) ;; ("<b>"|safe) ~ "<i>" ;; ("<b>"|safe)|upper ;; ("<b>"|safe)|length ;; ("<b>"|safe)|tojson ;; "<b>"|forceescape ;; ("<b>"|safe)|escape ;; [("<b>"|safe)]
d|tojson ;; l|tojson ;; s|tojson ;; u|tojson ;; u|tojson(ensure_ascii=true) ;; "<>&'\"\\/\n\t\r\b\f\x01\x7f"|tojson ;; "\x7f\u2028"|tojson(ensure_ascii=true) ;; n|tojson ;; t|tojson ;; 1.0|tojson ;; floats|tojson ;; d|tojson(indent=2) ;; d|tojson(indent=0) ;; []|tojson(indent=2) ;; {}|tojson(indent=4) ;; nested|tojson(indent=1) ;; d|tojson(separators=(",", ":")) ;; {"b": 1, "a": 2}|tojson(sort_keys=true) ;; d|tojson(sort_keys=true, indent=2) ;; d|tojson(indent="--") ;; x|tojson ;; (1, 2)|tojson ;; {1: 2, none: 3, true: 4, 1.5: 5}|tojson ;; {(1, 2): 3}|tojson ;; range(3)|tojson ;; d.items()|tojson ;; d.items()|list|tojson ;; {"a": x}|tojson ;; mixed|tojson ;; d|tojson(nope=1) ;; big|tojson ;; d|tojson(true) ;; d|tojson(indent=2, separators=(", ", " : "))
floats ;; mixed ;; d ;; l ;; (1,) ;; () ;; (1, 2) ;; {} ;; [] ;; {"a": "it's"} ;; ["a\"b", "it's", "both'\""] ;; ["\n\t\\", "é", "\x00", "\u200b", "😀"] ;; n ;; t ;; f ;; neg ;; range(3) ;; range(1, 10, 2) ;; range(0) ;; [none, true, x] ;; namespace(a=1) ;; {"k": [1, (2,)]} ;; 1e16 ;; 1e15 ;; 123456.789 ;; 1e-4 ;; 1e-5 ;; 5e-324 ;; 1.7976931348623157e308
range(10 ** 12) ;; range(100000)|length ;; range(100001) ;; range(5, 0, -2)|list ;; range(0, 5, 0) ;; range("a") ;; range() ;; dict(a=1, b=2) ;; dict([("a", 1)]) ;; dict({"a": 1}, b=2) ;; namespace(x=1).x ;; namespace(x=1).y ;; namespace({"a": 1}).a ;; dict(1) ;; [1, 2, x] | length ;; {[1]: 2} ;; {"a": 1, "a": 2} ;; raise_exception("no: " ~ i) ;; strftime_now("%Y-%m-%d %H:%M") ;; strftime_now("%d %b %Y") ;; strftime_now("%A %B %j %%")
"""

TESTS = r"""
x is defined ;; i is defined ;; x is undefined ;; x is not defined ;; d.zz is defined ;; n is none ;; i is none ;; n is not none ;; x is none ;; s is string ;; i is string ;; d is mapping ;; l is mapping ;; l is iterable ;; s is iterable ;; i is iterable ;; x is iterable ;; n is iterable ;; d.items() is iterable ;; l is sequence ;; s is sequence ;; d is sequence ;; x is sequence ;; d.items() is sequence ;; l|map("upper") is sequence ;; range(3) is sequence ;; i is sequence
i is number ;; f is number ;; t is number ;; s is number ;; i is integer ;; t is integer ;; f is integer ;; f is float ;; i is float ;; t is boolean ;; 1 is boolean ;; t is true ;; 1 is true ;; false is false ;; 0 is false ;; i is odd ;; i is even ;; i is divisibleby 7 ;; i is divisibleby(2) ;; "a" is odd ;; 3 is eq 3 ;; 3 is equalto 4 ;; 3 is ne 4 ;; 3 is gt 2 ;; 3 is lt 2 ;; 3 is ge 3 ;; 3 is le 2 ;; 3 is greaterthan 2 ;; 3 is lessthan 2 ;; 1 is in [1, 2] ;; 5 is not in [1] ;; "a" is in "abc" ;; n is sameas none ;; 1 is sameas 1.0 ;; 1 is sameas true
"abc" is lower ;; "ABC" is upper ;; "aB" is lower ;; 1 is upper ;; range is callable ;; s is callable ;; s.upper is callable ;; "upper" is filter ;; "nope" is filter ;; "odd" is test ;; ("<"|safe) is escaped ;; s is escaped ;; s is nope ;; s is string and i is number ;; s is string or nope is nope2 ;; not s is string ;; s is not string ;; s is string == true ;; x is defined and x.y ;; x is not defined or x.y ;; 1 is odd is even ;; [1, 2] is eq [1, 2] ;; s is eq "Hello" ~ ", World"
"""

TEMPLATES = [
    "", "plain", "plain\n", "plain\n\n", "a\r\nb\rc\n", "{{ 'x' }}\n", "é{{ u }}é",
    # whitespace
    "a {%- if t -%} b {%- endif -%} c", "a\n  {% if t %}\n  b\n  {% endif %}\nc", "a\n  {%+ if t %}\n  b\n  {%+ endif %}\nc",
    "{% if t +%}\nx{% endif +%}\ny", "a  {{- 'x' -}}  b", "a \n {{- 'x' -}} \n b", "a {{ 'x' }} b", "  {# c #}\nx", "x {#- c -#} y",
    "  {% set a = 1 %}  \n{{ a }}", "a{% if t %}\n\nb{% endif %}\n", "\n\n{% if t %}x{% endif %}\n\n", "x  {% if t %}y{% endif %}",
    "\t {%- if t %} y{% endif %}", "{{ '}}' }}", "{{ {'a': {'b': 1}}['a'] }}", "{# {{ x }} {% if %} #}ok", "a{#\nmulti\nline\n#}\nb",
    "{%- set a = 1 -%}\n\n  {{- a }}", " \u00a0{%- if t %}x{% endif %}", "{{'a'}}{{'b'}}\n{{'c'}}\n", "{%if t%}a{%else%}b{%endif%}",
    "{{+1}}", "{{-1}}", "{{ -1 }}", "a {{+ 'x' }}", "{% if t -%}\n   x\n{%- endif %}", "  {%- for x in l %}\n  {{ x }}\n  {%- endfor %}\n",
    # raw
    "{% raw %}{{ x }}{% if %}{% endraw %}", "{%- raw -%}  {{ x }}  {%- endraw -%}  y", "a\n  {% raw %}\n{{\n  {% endraw %}\nb", "{% raw %}x", "{%raw%}{% endraw +%}\nz",
    # if
    "{% if n %}a{% elif i == 7 %}b{% else %}c{% endif %}", "{% if x %}a{% endif %}", "{% if x.y %}a{% endif %}", "{% if not l %}a{% elif [] %}b{% elif 0.0 %}d{% else %}c{% endif %}",
    "{% if t and (n or i) %}y{% endif %}", "{% if t: %}y{% endif %}", "{% if 1, 2 %}y{% endif %}", "{% if '' %}a{% elif {} %}b{% elif namespace() %}c{% endif %}",
    # for
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}",
    "{% for x in nope %}a{% else %}none{% endfor %}", "{% for x in i %}a{% endfor %}", "{% for x in n %}a{% endfor %}", "{% for a, b in nested %}{{ a }}{% endfor %}", "{% for a, b in [[1, 2], (3, 4)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{{ loop.length }};{% endfor %}", "{% for x in l if x > 9 %}a{% else %}none{% endfor %}", "{% for x in l recursive %}{{ x }}{% endfor %}",
    "{% for x in tree recursive %}{{ x.v }}({{ loop.depth }}{{ loop.depth0 }}{{ loop(x.c) }}){% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }};{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }};{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{% for y in nested %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}", "{% for x in l %}{{ loop.nope }}{% endfor %}", "{{ loop }}", "{{ loop.index }}",
    "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% break %}{% else %}E{% endfor %}", "{% for x in l %}{% continue %}{% else %}E{% endfor %}",
    "{% for x in l %}{{ x }}{% if loop.index == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}", "{% break %}", "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% for i in range(3) %}{{ i }}{% endfor %}{{ i }}", "{% for x in l %}{% set y = x %}{% endfor %}{{ y }}", "{% set y = 0 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }};{% endfor %}{{ y }}", "{% for x in l %}{{ x }}{% set x = 9 %}{{ x }};{% endfor %}",
    "{% set ns = namespace(c=0) %}{% for x in l %}{% set ns.c = ns.c + x %}{% endfor %}{{ ns.c }}", "{% set ns = namespace(seen=false) %}{% for x in l if not ns.seen %}{{ x }}{% set ns.seen = true %}{% endfor %}", "{% set d.b = 2 %}", "{% set nope.b = 2 %}",
    "{% for x in l %}{{ loop.length }}{% endfor %}", "{% for x in l|map('string') %}{{ loop.length }}{{ loop.revindex }}{{ x }}{% endfor %}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|select %}{{ g|first }}{{ g|list }}", "{{ l|map('string') is iterable }}",
    "{% for m in messages %}{% if loop.first and m.role == 'user' %}F{% endif %}{{ m['role'] }}:{{ m.content|trim }}{% if not loop.last %}|{% endif %}{% endfor %}", "{% for m in messages[1:] %}{{ m.content }}{% endfor %}", "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}",
    "{% for x, y in d|dictsort %}{{ x }}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a + b }}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}", "{% for g in users|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}", "{% for age, us in users|groupby('age') %}{{ age }}{{ us|length }}{% endfor %}",
    "{% for x in l if loop.index %}{{ x }}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for k in d.keys() %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}",
    # set
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% set a %}x{{ i }}{% endset %}[{{ a }}]", "{% set a | upper | trim %} x {% endset %}[{{ a }}]", "{% set a = 1, 2 %}{{ a }}", "{% set a = (1) %}{{ a }}", "{% set a %}{% set b = 1 %}{% endset %}{{ b }}",
    "{% if t %}{% set a = 1 %}{% endif %}{{ a }}", "{% if n %}{% set s = 1 %}{% endif %}{{ s }}", "{% set s = s ~ '!' %}{{ s }}", "{% set true = 1 %}", "{% set 1 = 1 %}", "{% set a.b.c = 1 %}", "{% set a = %}", "{% set ns = namespace() %}{% set ns.a %}body{% endset %}{{ ns.a }}", "{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}{{ ns.a }}", "{% set a = x %}{{ a is defined }}", "{% set messages = messages[1:] %}{{ messages|length }}", "{% set range = 5 %}{{ range }}",
    # with, filter, call, macros
    "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}", "{% with a = 1, b = a %}{{ b }}{% endwith %}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b')|trim %} aa {% endfilter %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}",
    "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}{{ i }}{% endmacro %}{{ m() }}", "{% set q = 1 %}{% macro m() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ m() }}", "{% macro m() %}{% set q = 1 %}{% endmacro %}{{ m() }}{{ q }}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{{ m() }}{% macro m() %}a{% endmacro %}",
    "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}body{{ i }}{% endcall %}", "{% macro m() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(v) m() %}<{{ v }}>{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% call s %}y{% endcall %}", "{% macro m(x) %}{{ x is defined }}{% endmacro %}{{ m() }}{{ m(none) }}", "{% macro m(a) %}{{ a|upper }}{% endmacro %}{{ m('q')|length }}{{ m('q') ~ m('r') }}", "{% macro m(a, b) %}{{ a }}-{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}{{ m(1, *[2]) }}", "{% macro m %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro _m() %}u{% endmacro %}{{ _m() }}", "{{ m.name }}{% macro m() %}{% endmacro %}", "{% macro m() %}{% endmacro %}{{ m.name }}", "{% macro m(a, a) %}{% endmacro %}",
    "{% macro outer() %}{% macro inner() %}in{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}", "{% macro a(x) %}{% for y in x %}{{ b(y) }}{% endfor %}{% endmacro %}{% macro b(y) %}({{ y }}){% endmacro %}{{ a(l) }}", "{% macro m() %}{{ loop is defined }}{% endmacro %}{% for x in l %}{{ m() }}{% endfor %}", "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    "{% generation %}a{% set z = 1 %}{{ s }}{% endgeneration %}{{ z }}", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{% print i, s %}", "{{ 1, 2 }}", "{{ l|length + 1 }}", "{{ (l|length) * 2 }}", "{{ not t|string }}", "{{ -i|abs }}", "{{ 'a' 'b' }}", "{{ s.split(', ')[1][:3]|upper }}", "{{ l.0 }}", "{{ users.0.name }}",
    # syntax errors and what is not there
    "{{", "{{ }}", "{{ 1", "{% if %}", "{% if t %}", "{% if t %}{% endfor %}", "{% endif %}", "{% nope %}", "{% else %}", "{% for x in %}", "{% for x l %}{% endfor %}", "{{ 'abc }}", "{# never", "{{ (1 }}", "{{ 1) }}", "{{ [1, }}", "{{ {1} }}", "{{ a b }}", "{{ 1 + }}", "{{ s| }}", "{{ s|nope }}", "{% if n %}{{ s|nope }}{% endif %}ok", "{{ s|nope if n else 1 }}", "{% if n %}{{ s is nope }}{% endif %}ok", "{% if n %}{% for x in l %}{{ x|nope }}{% endfor %}{% endif %}", "{{ s is nope }}", "{{ a.1x }}", "{{ a. }}", "{{ l[ }}", "{{ l[] }}", "{{ f(a=1, 2) }}", "{{ f(**a, 1) }}", "{{ $ }}", "{{ 1 ! 2 }}", "{{ 012 }}", "{% do l %}", "{% set %}", "{% macro %}", "{{ s is }}", "{{ '\\x4' }}", "{{ '\\x41\\u00e9\\n\\101\\q' }}", "{{ 'a\nb' }}", '{{ "it\'s" }}',
    # the shape of chat templates
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}",
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}",
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}", "{%- set ns = namespace(is_first=true, text='') -%}\n{%- for m in messages -%}\n    {%- if ns.is_first -%}{%- set ns.is_first = false -%}{%- else -%}{{ '|' }}{%- endif -%}\n    {%- set ns.text = ns.text ~ m.content -%}\n    {{- m.role -}}\n{%- endfor -%}\n{{ ns.text }}",
    "{{ '<b>' }}{{ messages[2].content }}{{ \"&\" }}", "{{ strftime_now('%d %b %Y') }}", "{{- bos_token }}{{ messages|tojson }}", "{{ messages | tojson(indent=2) | indent(4) }}",
]


def all_templates():
    for line in EXPRESSIONS.strip().splitlines():
        for expression in line.split(" | "):
            yield "{{ " + expression + " }}"
    for block in (FILTERS, TESTS):
        for line in block.strip().splitlines():
            for expression in line.split(" ;; "):
                yield "{{ " + expression + " }}"
    yield from TEMPLATES


# Our messages needn't be jinja2's word for word; those about values are.
SAME = ("is undefined", "has no attribute", "has no element", "is unsafe", "concatenate", "not iterable", "roles must alternate")


def main():
    cases = []
    for template in dict.fromkeys(all_templates()):
        case = {"template": template, **jinja_reference.render(template, CONTEXT, 1720000000)}
        if " at 0x" in case.get("expected", ""):
            continue  # an address: no text to compare with
        if "error" in case:
            case["same"] = any(part in case["error"] for part in SAME)
        cases.append(case)
    path = pathlib.Path(__file__).with_name("jinja_cases.json")
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path.write_text('{"context": %s,\n"now": 1720000000,\n"cases": [\n%s\n]}\n' % (json.dumps(CONTEXT, ensure_ascii=False), lines))
    print(len(cases), "cases,", sum("error" in case for case in cases), "of them errors")


if __name__ == "__main__":
    main()

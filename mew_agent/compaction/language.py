"""[pure] Classifies sentences by their words: rule, decision, refusal, language.

The word lists cover English, German, French, Spanish, Chinese and Japanese. In other languages a sentence is still
recognised by its identifiers, numbers and question marks, and a text by its script.

The lists are guesses. A superfluous word ("may", "only") keeps a sentence that could go. A rule without a listed word
is still a plain sentence of a participant, which stays while there is room. Pin texts that must never be lost.
"""

import re
from collections import Counter
from collections.abc import Iterator

MOST_SENTENCE_CHARS = 600  # longer ones are code or data


def _words(*alternatives: str) -> re.Pattern[str]:
    """Compile alternatives: those in Latin script match whole words, those in Chinese and Japanese match anywhere."""
    latin = "|".join(part for part in alternatives if part[0].isascii() or part[0] < "\u0370")
    other = "|".join(part for part in alternatives if not (part[0].isascii() or part[0] < "\u0370"))
    return re.compile(rf"(?<!\w)(?:{latin})(?!\w){'|' + other if other else ''}", re.IGNORECASE)


RULE = _words(
    r"must|never|always|do not|don['’]t|shall|may not|may only|cannot|can['’]t|not allowed|forbidden|prohibited"
    r"|under no circumstances|make sure|ensure|at most|at least|no more than|no later than|rules?|constraints?|only"
    r"|unless|without (?:asking|approval|permission)|required|keep secret|confidential"
    r"|ha(?:s|ve) to|needs? (?:to|approval)|may|read[- ]only|no exceptions?|except|if [^,]{3,80},|whenever|capped",
    r"muss|müssen|musst|nie|niemals|immer|darf|dürfen|verboten|auf keinen Fall|keinesfalls|höchstens|mindestens"
    r"|bitte nicht|Regeln?|nur|vertraulich",
    r"doit|doivent|dois|devez|jamais|toujours|interdit\w*|il faut|obligatoire\w*|au plus|au moins|seulement|règles?",
    r"nunca|siempre|debe[ns]?|hay que|prohibid\w+|obligatori\w+|como máximo|como mínimo|al menos|reglas?|solo|sólo",
    r"必须|不得|不要|不能|不可|禁止|永远|绝不|始终|务必|只能|至少|最多|规则",
    r"必ず|絶対に|してはいけ|しないで|しないこと|常に|なければなら|ルール|以内|だけ",
)
WITHDRAWAL = _words(
    r"no longer|withdraw\w*|withdrawn|lifted|revoked?|cancelled|canceled|is void|you may now|from now on you may"
    r"|drop the rule|never mind",
    r"nicht mehr|aufgehoben|zurückgezogen|hinfällig|du darfst (?:nun|jetzt|wieder)",
    r"ne \w+ plus|levée?|annulée?|retirée?",
    r"ya no|anulad\w+|levantad\w+|retirad\w+|cancelad\w+",
    r"不再|取消|撤销|撤回|作废",
    r"撤回|取り消|解除",
)
DECISION = _words(
    r"decid\w+|decision|agreed?|chose|chosen|we(?:['’]ll| will) (?:use|go|keep|take)|settled on|go with|instead of"
    r"|approved|let['’]s|settle on|it is, |off the table|ruled? out",
    r"entschieden|Entscheidung|beschlossen|einigen|geeinigt|wir nehmen|genehmigt",
    r"décid\w+|décision|convenu\w*|choisi\w*|approuvée?",
    r"decid\w+|decisión|acord\w+|elegi\w+|aprobad\w+",
    r"决定|采用|同意|改用|批准",
    r"決定|採用|合意|に決め|承認",
)
PREFERENCE = _words(
    r"prefer\w*|favou?rite|I(?:['’]d| would) like|I like|rather|I want|please (?:answer|reply|use|keep|avoid|format)",
    r"bevorzug\w+|lieber|am liebsten|ich möchte|hätte gern",
    r"préfèr\w+|préfér\w+|plutôt|je (?:veux|voudrais|souhaite)",
    r"prefier\w+|preferi\w+|me gusta|quiero|quisiera",
    r"喜欢|偏好|希望|想要|宁愿",
    r"好き|好み|ほしい|希望",
)
OPEN = _words(
    r"to-?do|pending|still (?:need|open|missing)\w*|next step|next|blocked|waiting for|not yet",
    r"noch (?:offen|nicht)|fehlt|nächste[rns]?|steht aus|blockiert|wartet auf",
    r"reste à|à faire|prochaine?|en attente|bloqué\w*|pas encore",
    r"pendiente\w*|falta|próxim\w+|todavía no|bloquead\w+",
    r"待办|下一步|尚未|还没|还需|等待",
    r"次に|未対応|まだ|残って|待ち",
)
CHANGE = _words(
    r"instead of|no longer|changed?|changes|now|moved?|moves|replaced?|replaces|not",
    r"statt|anstatt|nicht mehr|jetzt|nun|geändert|ändert|ersetzt|sondern",
    r"au lieu de|désormais|maintenant|changé\w*|change|remplacé?\w*",
    r"en lugar de|en vez de|ya no|ahora|cambi\w+|reemplaz\w+",
    r"改为|改成|而不是|现在|不再",
    r"ではなく|変更|今は|代わりに",
)
NEGATION = _words(
    r"not|no|none|nobody|nothing|neither|nor|without|\w+n['’]t",
    r"nicht|kein\w*|ohne|niemand|nichts|weder",
    r"pas|aucune?|personne|rien|sans|ni",
    r"ningun[oa]?|ningún|nadie|nada|sin",
    r"不|没|無|无|非",
    r"ない|ません|なし",
)
OWN_ACTIVITY = re.compile(r"(?:I|I['’](?:ve|ll|m)|Ich|Je|J['’]ai|He|Yo)\b|我(?!们)|私")
"""Beginnings of reports about a speaker's own actions: worth less later than a statement about the work."""

REQUEST = re.compile(
    r"(?:please|(?:can|could|would|will) you|bitte|kannst du|s['’]il|peux-tu|pouvez-vous|por favor|puedes)\b"
    r"|[请請]",
    re.IGNORECASE,
)
"""How a request begins. Once it is done, it is no longer needed."""

REFUSAL = _words(
    r"(?:I['’]m|I am|we are) (?:very |so )?(?:sorry|unable|not able)|sorry"
    r"|I (?:can['’]t|cannot|can not|won['’]t|will not)|as an AI|unfortunately,? I",
    r"(?:es )?tut mir leid|ich kann (?:das |dir |Ihnen |leider )?nicht|leider kann ich|als KI",
    r"je suis désolée?|désolée?|je ne peux pas|en tant qu['’]IA",
    r"lo siento|no puedo|como (?:una )?IA",
    r"抱歉|对不起|我无法|我不能|作为(?:一个)?(?:AI|人工智能)",
    r"申し訳|すみません|できません|AIとして",
)
CLAIM = _words(
    r"(?:the )?users? (?:has |have )?(?:asked|wants?|wanted|requested|said|demanded|prefers?|instructed)",
    r"(?:der |die )?(?:Nutzer|Nutzerin|Benutzer|Anwender)\w* (?:bat|will|wollte|verlangte?|sagte|möchte)",
    r"l['’]utilisat(?:eur|rice) (?:a |veut|voulait|souhaite|demande)\w*",
    r"(?:el|la) usuari[oa] (?:pidió|quiere|quería|solicitó|dijo|ha pedido)",
    r"用户(?:要求|想|希望|请求|说)",
    r"ユーザー(?:は|が|の(?:要求|依頼|希望))",
)

_COMMON = {
    "English": "the and of to is in that it for was with are this be on not you have we",
    "German": "der die das und ist nicht ein eine zu den mit für auf dem von wir es ich auch sich",
    "French": "le la les et est une des du que dans pour pas il au sur qui nous je avec ce",
    "Spanish": "el los las y es una de que en por con para del se no lo su como está pero",
}
_COMMON_WORDS = {name: frozenset(words.split()) for name, words in _COMMON.items()}
_SCRIPTS = {
    "Chinese": r"[\u3400-\u4dbf\u4e00-\u9fff]",
    "Japanese": r"[\u3040-\u30ff]",
    "Korean": r"[\uac00-\ud7af]",
    "Cyrillic": r"[\u0400-\u04ff]+",
    "Greek": r"[\u0370-\u03ff]+",
    "Arabic": r"[\u0600-\u06ff]+",
    "Hebrew": r"[\u0590-\u05ff]+",
    "Devanagari": r"[\u0900-\u097f]+",
    "Thai": r"[\u0e00-\u0e7f]",
    "Latin": r"[A-Za-zÀ-ɏ]+",
}
_SCRIPT_RUNS = {name: re.compile(pattern) for name, pattern in _SCRIPTS.items()}
_ONE_CHARACTER_WORDS = frozenset({"Chinese", "Japanese", "Korean", "Thai"})
_LATIN_WORD = re.compile(r"[a-zà-ɏ]+")
_MIN_COMMON_WORDS = 4

_BREAK = re.compile(r"(?<=[.!?])[\"')\]*]*\s+|(?<=[。！？])|\n+")
_STOPS = (".", "!", "?", "。", "！", "？")
CUT_START = "[..."
_LIST_MARK = re.compile(r"^(?:[-*+•>#|]+|\d{1,3}[.)])\s+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MARKUP = re.compile(r"^[\W_]*$")
IDENTIFIER = re.compile(
    r"https?://[^\s<>\"')\]]+"
    r"|`[^`\n]{2,80}`"
    r"|(?<![\w./-])[~.]{0,2}/?[\w-][\w.-]{0,100}(?:/[\w.-]{1,100}){1,20}"  # paths
    r"|(?<![\w.-])\w[\w-]{0,80}\.[A-Za-z]\w{0,4}(?![\w.])"  # files and hosts
    r"|(?<![\w-])[A-Za-z][A-Za-z0-9]{0,60}(?:[-_#][A-Za-z0-9]{1,60}){0,6}[-_#]\d[\w-]{0,40}"  # env-42
    r"|(?<!\w)(?=\w{0,40}_\w)[A-Za-z_]\w{2,80}"  # snake_case
    r"|(?<!\w)[a-z]{1,40}[A-Z]\w{1,60}|(?<!\w)[A-Z][a-z]{1,40}[A-Z]\w{1,60}"  # camelCase
    r"|(?<!\w)(?=[0-9a-f]{0,40}\d)[0-9a-f]{7,40}(?!\w)"
    r"|(?<![\w.])v?\d[\d.,:%-]{0,30}[\d%]|(?<![\w.])\d(?=\s?(?:%|[A-Za-z]{1,3}(?!\w)))"  # numbers
)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,30}(?: [A-Z][a-z]{2,30})?")
_CONTENT = re.compile(r"[^\W_]{3,60}")
_EAST_ASIAN = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]{2,}")
_MORE_STOP_WORDS = (
    "has had will would can could should from they them their there these those been were what which who when where how"
    " all any also just now then than but our your its his her"
)
_STOP_WORDS = frozenset(_MORE_STOP_WORDS.split()).union(*_COMMON_WORDS.values())


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences and lines of a text as written, without list marks. Leaves out code and data."""
    for piece in _BREAK.split(text):
        sentence = _CONTROL.sub("", _LIST_MARK.sub("", piece.strip())).strip()
        if 4 <= len(sentence) <= MOST_SENTENCE_CHARS and not _MARKUP.match(sentence):
            yield sentence


def whole_lines(text: str) -> list[str]:
    """Return the complete lines and sentences of a text that was cut at the marks `[...]`."""
    if CUT_START not in text:
        return text.split("\n")
    kept, is_after_cut = list[str](), False
    for line in text.split("\n"):
        if line.startswith(CUT_START) and line.endswith("]"):
            if kept and not is_after_cut and not kept[-1].rstrip().endswith(_STOPS):
                kept[-1] = " ".join(_BREAK.split(kept[-1])[:-1])
            is_after_cut = True
            continue
        kept.append(" ".join(_BREAK.split(line)[1:]) if is_after_cut else line)
        is_after_cut = False
    return kept


def is_question(sentence: str) -> bool:
    """Return whether a sentence is a question."""
    return sentence.rstrip("\"')*»」 ").endswith(("?", "？", "؟"))


def identifiers(text: str) -> list[str]:
    """Return the distinct paths, files, URLs, ids, code names, numbers and names in sentences, in order."""
    found = [match.strip("`").rstrip(".,;:") for match in IDENTIFIER.findall(text)]
    names = _NAME.findall(text)
    if names and language_of(text) == "German":
        names = []  # German writes every noun with a capital letter, so capitals show no names there
    return [name for name in dict.fromkeys([*found, *names]) if name]


def content_words(text: str) -> frozenset[str]:
    """Return the content words in lower case; for Chinese, Japanese and Korean, pairs of characters."""
    words = {
        word for word in _CONTENT.findall(text.lower()) if word not in _STOP_WORDS and not _EAST_ASIAN.search(word)
    }
    for run in _EAST_ASIAN.findall(text):
        words.update(run[at : at + 2] for at in range(len(run) - 1))
    return frozenset(words)


def language_of(text: str) -> str | None:
    """Return the language of a text, else its script; None if neither is clear."""
    plain = IDENTIFIER.sub(" ", text)
    found = {name: len(pattern.findall(plain)) for name, pattern in _SCRIPT_RUNS.items()}
    weighed = {name: count / 2 if name in _ONE_CHARACTER_WORDS else float(count) for name, count in found.items()}
    script = max(weighed, key=lambda name: weighed[name])
    if weighed[script] < _MIN_COMMON_WORDS:
        return None
    if script == "Chinese" and found["Japanese"] * 10 > found["Chinese"]:
        return "Japanese"  # writes Chinese characters too
    return _latin_language(plain) if script == "Latin" else script


def _latin_language(text: str) -> str | None:
    words = Counter(_LATIN_WORD.findall(text.lower()))
    hits = sorted(((sum(words[word] for word in common), name) for name, common in _COMMON_WORDS.items()), reverse=True)
    (first, name), (second, _) = hits[:2]
    return name if first >= _MIN_COMMON_WORDS and first * 2 >= second * 3 else None

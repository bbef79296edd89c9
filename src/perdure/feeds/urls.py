"""Normalizes URLs, recognizes tracking parameters, and finds URLs in plain text.

The functions in this module are pure. Links with equal normalized URLs are treated as links to the same page.
Normalized URLs are only used for comparison; users open the URL as it was shared. In a normalized URL:

- The scheme is https. The host is lower-case ASCII. Credentials, the default port and a final
  dot are removed.
- Letters, digits and `-._~` are not percent-encoded. Percent-encodings use upper-case hexadecimal digits.
- Parameters that track the reader are removed (see `is_tracking`). Other parameters are sorted by name.
- Trailing slashes are removed. So are fragments, unless they select a page, like `#/article/5` or `#!/news`.

Parameters that may select a page are not removed. A name that is used for tracking on every site belongs in
`TRACKING_PARAMETERS`. A name that is used for tracking only on certain sites belongs in
`HOST_TRACKING_PARAMETERS`: for example, `si` is a share code on YouTube, but may select a section on another
site. Before you add a parameter, find the documentation of the service that appends it. Add the name in lower
case under the comment for that service, and add an example to `tests/feeds/test_urls.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

MAX_URL_LENGTH = 2048
"""Maximum number of characters in a normalized URL. Longer URLs are ignored."""

_DEFAULT_PORTS = {"http": (80, 443), "https": (443,)}
"""The ports to remove, by scheme. Since http becomes https, both default ports are removed from http URLs."""
_WHITESPACE = re.compile(r"\s")
_HOST = re.compile(r"[^\x00-\x20\"#%/:<>?@\[\\\]^`{|}\x7f]+")
_IPV6 = re.compile(r"[0-9a-f:.]+")
_ESCAPE_CANDIDATE = re.compile(r"%([0-9A-Fa-f]{2})?|[^A-Za-z0-9\-._~!$&'()*+,;=:@/?%]")
"""Matches percent-encoded bytes, other percent signs, and characters that must be percent-encoded."""
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_TEXT_DIRECTIVE = ":~:"
"""Separates the page's own fragment from an instruction to the browser to highlight some text."""

_URL = re.compile(r"https?://[^\s<>\"'`\u2026]+", re.IGNORECASE)
_TRAILING_PUNCTUATION = ".,;:!?\u2026\u2019\u201d"


def normalize_url(url: str) -> str | None:
    """Return the normalized form of an http or https URL, or None if the URL is invalid or too long."""
    written = url.strip()
    if _WHITESPACE.search(written):
        return None
    try:
        parts = urlsplit(written)
        found = _host_and_authority(parts)
        if found is None:
            return None
        host, authority = found
        query, fragment = _query(host, parts.query), _fragment(parts.fragment)
        path = _normalize_escapes(parts.path).rstrip("/")
    except ValueError:  # a port that is not a number, a bracket that is not closed, or a lone surrogate
        return None
    normal = f"https://{authority}{path}{query and f'?{query}'}{fragment and f'#{fragment}'}"
    return normal if len(normal) <= MAX_URL_LENGTH else None


def _host_and_authority(parts: SplitResult) -> tuple[str, str] | None:
    """Return the normalized host, without and with its port, or None if the host or scheme is invalid."""
    scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    if scheme not in _DEFAULT_PORTS:
        return None
    if not host.isascii():
        host = host.encode("idna").decode()
    host = host.rstrip(".")
    if ":" in host:
        if not _IPV6.fullmatch(host):
            return None
        authority = f"[{host}]"
    elif _HOST.fullmatch(host):
        authority = host
    else:
        return None
    return host, authority if port in (None, *_DEFAULT_PORTS[scheme]) else f"{authority}:{port}"


def _query(host: str, query: str) -> str:
    """Return the query with its parameters sorted by name and without tracking parameters."""
    if not query:
        return ""
    pairs = [_normalize_escapes(part).partition("=") for part in query.split("&") if part]
    kept = [(name, sign, value) for name, sign, value in pairs if not is_tracking(host, name, value)]
    return "&".join(f"{name}{sign}{value}" for name, sign, value in sorted(kept, key=lambda each: each[0]))


def _fragment(fragment: str) -> str:
    """Return the fragment if it selects a page of a single-page application, else an empty string."""
    own = _normalize_escapes(fragment).partition(_TEXT_DIRECTIVE)[0]
    return own if "/" in own or own.startswith("!") else ""


def _normalize_escapes(text: str) -> str:
    """Normalize the percent-encoding in a part of a URL."""
    return _ESCAPE_CANDIDATE.sub(_normalize_escape, text)


def _normalize_escape(found: re.Match[str]) -> str:
    text, digits = found[0], found[1]
    if digits is not None:
        byte = int(digits, 16)
        return chr(byte) if byte in _UNRESERVED else text.upper()
    return "".join(f"%{byte:02X}" for byte in text.encode())


def original_url(url: str, normal: str) -> str:
    """Return a URL as it was shared, or an empty string if it equals `normal` or is too long."""
    written = url.strip()
    return "" if written == normal or len(written) > MAX_URL_LENGTH else written


def find_urls(text: str) -> list[str]:
    """Return the URLs in plain text, without trailing punctuation."""
    return [_strip_punctuation(found.group()) for found in _URL.finditer(text)]


def _strip_punctuation(url: str) -> str:
    """Remove trailing punctuation. Keep a closing bracket if the URL contains its opening bracket."""
    while url and (url[-1] in _TRAILING_PUNCTUATION or _ends_with_unopened_bracket(url)):
        url = url[:-1]
    return url


def _ends_with_unopened_bracket(url: str) -> bool:
    opening = {")": "(", "]": "["}.get(url[-1])
    return opening is not None and url.count(opening) < url.count(url[-1])


TRACKING_PREFIXES = ("utm_", "mtm_", "guce_", "__hs", "gaa_", "pd_rd_", "pf_rd_")
"""Prefixes of the tracking parameters of Google Analytics, Matomo, Yahoo, HubSpot, Google News and Amazon."""

TRACKING_PARAMETERS = frozenset(
    {
        # Clicks on advertisements: Facebook, Google, Microsoft, Yandex, X, TikTok, LinkedIn, Pinterest, Adobe
        *("fbclid", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "srsltid", "msclkid", "yclid", "ysclid"),
        *("twclid", "ttclid", "li_fat_id", "epik", "ef_id", "s_kwcid", "rb_clickid", "_openstat"),
        # Shares from an app: Instagram, Facebook, X
        *("igshid", "igsh", "fb_action_ids", "fb_action_types", "fb_ref", "fb_source"),
        *("__twitter_impression", "ref_src", "ref_url"),
        # Newsletters: Mailchimp, HubSpot, Marketo, Vero, MailerLite, Wicked Reports, Omeda
        *("mc_cid", "mc_eid", "_hsenc", "_hsmi", "hsctatracking", "mkt_tok", "vero_id", "vero_conv"),
        *("ml_subscriber", "ml_subscriber_hash", "wickedid"),
        *("oly_anon_id", "oly_enc_id"),
        # Analytics: Google, Adobe, Matomo, Yahoo, comScore, AT Internet and the BBC
        *("_ga", "_gl", "s_cid", "cmpid", "guccounter", "xtor"),
        *("pk_campaign", "pk_kwd", "pk_medium", "pk_source", "piwik_campaign", "piwik_kwd"),
        *("ns_campaign", "ns_fee", "ns_linkname", "ns_mchannel", "ns_source"),
        *("at_campaign", "at_campaign_type", "at_medium", "at_format", "at_link_id", "at_link_origin"),
        *("at_link_type", "at_bbc_team", "at_ptr_name"),
    }
)

_YOUTUBE = frozenset({"si", "feature", "pp"})
_X = frozenset({"s", "t"})

HOST_TRACKING_PARAMETERS: Mapping[str, frozenset[str]] = {
    # Share codes
    "youtube.com": _YOUTUBE,
    "youtu.be": _YOUTUBE,
    "spotify.com": frozenset({"si", "nd"}),
    "x.com": _X,
    "twitter.com": _X,
    "tiktok.com": frozenset({"_t", "_r", "is_copy_url", "is_from_webapp", "sender_device", "web_id"}),
    "reddit.com": frozenset({"share_id", "rdt"}),
    "linkedin.com": frozenset({"trk", "trackingid", "rcm"}),
    "substack.com": frozenset({"r", "isfreemail", "triedredirect", "showwelcomeonshare"}),
    "medium.com": frozenset({"source", "sk"}),
    "amazon.com": frozenset({"tag", "ref", "ref_", "linkcode"}),
    # Newspapers: referrers, and gift codes, which are different each time an article is shared
    "nytimes.com": frozenset({"smid", "smtyp", "unlocked_article_code", "referringsource", "giftcopy"}),
    "washingtonpost.com": frozenset({"pwapi_token", "itid", "wpisrc", "wpmm"}),
    "theguardian.com": frozenset({"cmp"}),
    "theatlantic.com": frozenset({"gift"}),
    "wsj.com": frozenset({"st", "reflink", "mod"}),
    "ft.com": frozenset({"accesstoken", "sharetype", "shareid"}),
    "bloomberg.com": frozenset({"accesstoken", "leadsource", "sref"}),
    "economist.com": frozenset({"giftid"}),
    "reuters.com": frozenset({"taid"}),
}
"""Query parameters that count as tracking parameters on a host and its subdomains, by host."""

_HOST_NAME = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}", re.IGNORECASE)
HOSTS_WITH_REF_BRANCH = frozenset({"github.com", "gitlab.com", "codeberg.org", "bitbucket.org"})
"""Hosts on which the parameter `ref` is the name of a Git branch."""


def is_tracking(host: str, name: str, value: str) -> bool:
    """Return whether a query parameter of a page on this host tracks the reader.

    Blogs and newsletters append `ref` with their own host name. That counts as tracking, except on Git hosts.
    """
    name = name.lower()
    if name in TRACKING_PARAMETERS or name.startswith(TRACKING_PREFIXES):
        return True
    domains = _domains(host)
    if name == "ref" and _HOST_NAME.fullmatch(value):
        return not any(domain in HOSTS_WITH_REF_BRANCH for domain in domains)
    return any(name in HOST_TRACKING_PARAMETERS.get(domain, ()) for domain in domains)


def _domains(host: str) -> list[str]:
    """Return the host and its parent domains, except the top-level domain."""
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(max(1, len(labels) - 1))]

"""Query parameters that tell a site where its reader comes from, and say nothing about the page. Pure.

The list is deliberately short of anything that may select a page. A parameter belongs to `EVERYWHERE` if its
name is used for nothing else, and otherwise to the hosts on which it is known to track or to carry a gift:
`si` is a share code on YouTube, and may be a section elsewhere. Names are compared in lower case.

To add one: find the documentation of the service that appends it, put it under that service's comment, and
add an example to `tests/feeds/test_link_identity.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIXES = ("utm_", "mtm_", "guce_", "__hs", "gaa_", "pd_rd_", "pf_rd_")
"""Families of parameters: Google Analytics, Matomo, Yahoo, HubSpot, Google's reader revenue, Amazon."""

EVERYWHERE = frozenset(
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

ON_HOSTS: Mapping[str, frozenset[str]] = {
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
    # Newspapers: referrers, and gift codes, which differ with each reader who shares the same article
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
"""For the host and everything below it."""

_HOST_NAME = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*\.[a-z]{2,}", re.IGNORECASE)
REF_SELECTS = frozenset({"github.com", "gitlab.com", "codeberg.org", "bitbucket.org"})
"""Hosts on which `ref` names a branch."""


def is_tracking(host: str, name: str, value: str) -> bool:
    """Return whether a query parameter of a page on this host tracks its reader.

    Blogs and newsletters append `ref` with their own host name; with any other value it is left alone.
    """
    name = name.lower()
    if name in EVERYWHERE or name.startswith(PREFIXES):
        return True
    domains = _domains(host)
    if name == "ref" and _HOST_NAME.fullmatch(value):
        return not any(domain in REF_SELECTS for domain in domains)
    return any(name in ON_HOSTS.get(domain, ()) for domain in domains)


def _domains(host: str) -> list[str]:
    """The host, and the domains that it belongs to, down to two labels."""
    labels = host.split(".")
    return [".".join(labels[start:]) for start in range(max(1, len(labels) - 1))]

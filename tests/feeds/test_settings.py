"""Settings are read from YAML or TOML, checked before anything begins, and wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.feeds.errors import InvalidSettings
from perdure.feeds.settings import FeedSettings, PollSettings, load_settings
from perdure.storage.time_types import HOUR, MINUTE

YAML = """
url: sqlite:///mine.db
polling:
  interval_minutes: 20
  posts_per_page: 50
  initial_lookback_hours: 48
  max_retries: 5
  retry_backoff_ms: 250
  max_pages_per_user: 7
"""
TOML = """
url = "sqlite:///mine.db"
[polling]
interval_minutes = 20
posts_per_page = 50
initial_lookback_hours = 48
max_retries = 5
retry_backoff_ms = 250
max_pages_per_user = 7
"""


def file_of(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("f.yaml", YAML), ("f.yml", YAML), ("f.toml", TOML)])
def test_both_kinds_of_file_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    settings = load_settings(file_of(tmp_path, name, text))
    assert settings == FeedSettings(
        url="sqlite:///mine.db",
        polling=PollSettings(
            interval_minutes=20,
            posts_per_page=50,
            initial_lookback_hours=48,
            max_retries=5,
            retry_backoff_ms=250,
            max_pages_per_user=7,
        ),
    )
    assert (settings.polling.initial_interval, settings.polling.lookback) == (20 * MINUTE, 48 * HOUR)


def test_what_is_not_said_is_as_documented(tmp_path: Path) -> None:
    settings = load_settings(file_of(tmp_path, "f.yaml", ""))
    polling = settings.polling
    assert (polling.interval_minutes, polling.posts_per_page, polling.initial_lookback_hours) == (15, 100, 24)
    assert (polling.max_retries, polling.retry_backoff_ms, polling.max_pages_per_user) == (3, 1000, 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polling: {posts_per_page: 500}", "polling.posts_per_page: must be between 1 and 100, not 500"),
        ("polling: {posts_per_page: 0}", "polling.posts_per_page"),
        ("polling: {interval_minutes: 1}", "polling.interval_minutes: must be between 2 and 360, not 1"),
        ("polling: {interval_minutes: .nan}", "polling.interval_minutes"),
        ("polling: {max_retries: -1}", "polling.max_retries"),
        ("polling: {posts_per_page: many}", "`$.polling.posts_per_page`"),
        ("polling: {post_per_page: 5}", "post_per_page"),
        ("poling: {}", "poling"),
        ("- 1", "Expected `object`"),
        ("polling: [", "invalid YAML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = file_of(tmp_path, "f.yaml", text)
    with pytest.raises(InvalidSettings) as raised:
        load_settings(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load_settings(tmp_path / "none.toml")
    with pytest.raises(InvalidSettings, match=r"\.toml, \.yaml or \.yml"):
        load_settings(tmp_path / "none.ini")
    with pytest.raises(InvalidSettings, match="invalid TOML"):
        load_settings(file_of(tmp_path, "f.toml", "polling = ["))

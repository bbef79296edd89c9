# `perdure serve` for containers: the sample tools, or a server of your own if you build upon this image.
# Clients need the token in PERDURE_TOKEN, without which it does not start. The dashboard needs the same token, or
# the one in PERDURE_DASHBOARD_TOKEN if that is set.
FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY src src
RUN pip wheel --quiet --no-cache-dir --constraint constraints.txt --wheel-dir /wheels '.[cli,feeds,postgres,web]'

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --quiet --no-cache-dir --no-index --find-links /wheels 'perdure[cli,feeds,postgres,web]'
RUN useradd --uid 10001 --no-create-home perdure && install --directory --owner perdure /data
USER perdure
WORKDIR /data
VOLUME /data
ENV PYTHONUNBUFFERED=1 PERDURE_URL=sqlite:////data/perdure.db
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s CMD ["python", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=5); c.request('GET', '/health'); raise SystemExit(c.getresponse().status != 200)"]
CMD ["perdure", "serve", "--host", "0.0.0.0", "--port", "8000"]

# A node of tierlog as a container. From the root of the checkout, with docker or podman:
#   docker build -t tierlog .
# How to run it: docs/howto/hosts.md; with an S3 server and a schema registry: compose.yaml.
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY src src
COPY broker broker
COPY cli cli
COPY metadata metadata
COPY spark spark
COPY tiering tiering
# The versions that were tested, without those that only tests need.
RUN sed -n '/^[A-Za-z0-9]/s/ *\\$//p' requirements.lock > constraints.txt
RUN python -m venv /opt/tierlog
RUN /opt/tierlog/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/tierlog --create-home tierlog
COPY --from=build /opt/tierlog /opt/tierlog
ENV PATH=/opt/tierlog/bin:$PATH
ENV TIERLOG_LOG_DIRS=/var/lib/tierlog/data
ENV TIERLOG_LISTENERS=PLAINTEXT://0.0.0.0:9092
ENV TIERLOG_ADMIN_LISTENER=0.0.0.0:9644
USER tierlog
VOLUME /var/lib/tierlog
EXPOSE 9092 9644
# A controlled shutdown; give it two minutes (docker run --stop-timeout 120).
STOPSIGNAL SIGTERM
HEALTHCHECK --start-period=10m CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9644/health', timeout=3)"]
ENTRYPOINT ["tierlog", "server"]

# One image for every part of the fleet; docker-compose.yml says which part a container is.
#
# bookworm by name: the plain slim tag moves on to Debian releases that no longer carry Java 17.
FROM python:3.11-slim-bookworm

# What to install: "worker" runs jobs; "demo" brings the flights data too.
ARG EXTRAS=worker

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tasks tasks
COPY coordinator coordinator
COPY src src
RUN pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]" && rm -rf /build

# Steps run code of users: not as root. Named volumes take the owner of the folder they are first mounted over.
RUN useradd --uid 1000 --create-home unstuck && mkdir /warehouse /app && chown unstuck /warehouse /app
USER unstuck
WORKDIR /app
# The steps' modules are imported from the working directory. For your own: FROM this image, COPY them here.
COPY examples examples

ENV PYTHONUNBUFFERED=1
CMD ["unstuck", "--help"]

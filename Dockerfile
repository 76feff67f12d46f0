# Longtail's service: `docker build -t longtail .`, then
# docker run -p 127.0.0.1:8000:8000 -v "$PWD/bundle:/bundle:ro" longtail
# It is built from the Python image, the package index and, in the first stage alone, Debian's compiler (hnswlib comes as
# source, and is built for every processor of the kind); the model is not in it but mounted.
FROM python:3.11-slim AS build
RUN apt-get update -qq \
 && apt-get install -qq -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE dvc.yaml params.yaml ./
COPY data/raw/hpo/dataset.yaml data/raw/hpo/dataset.yaml
COPY recipes recipes
COPY longtail longtail
COPY stages stages
COPY unidec unidec
COPY xcutils xcutils
RUN python -m venv /opt/longtail \
 && HNSWLIB_NO_NATIVE=1 /opt/longtail/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:3.11-slim
COPY --from=build /opt/longtail /opt/longtail
RUN useradd --system --uid 10001 longtail
USER longtail
ENV PATH=/opt/longtail/bin:$PATH HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"]
ENTRYPOINT ["xc", "serve", "--host", "0.0.0.0", "--port", "8000", "--bundle", "/bundle"]
CMD ["--workers", "2"]

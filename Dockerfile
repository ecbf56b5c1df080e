# Two images: `docker build --target operator .` (never torch or Ray) and `--target runtime .` (the Ray pods').
# Both run as uid 1000 with a read-only root filesystem; /tmp and HOME are then volumes.
# Written for BuildKit and for the classic builder alike; `make images` builds both.

FROM python:3.11-slim-bookworm AS base
# One user for all pods. A uid without a name (OpenShift gives one) still finds HOME and USER.
RUN groupadd --gid 1000 hindcast \
    && useradd --uid 1000 --gid 1000 --create-home --shell /usr/sbin/nologin hindcast
ENV HOME=/home/hindcast \
    USER=hindcast \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_DISABLE_PIP_VERSION_CHECK=1
# Compile the standard library now: on a read-only root every process would do it again.
RUN python -m compileall -q -x 'site-packages|/tests?/' /usr/local/lib/python3.11
WORKDIR /home/hindcast


# Requirements of each image, as files: a change of the code or the version does not rebuild their layers.
FROM base AS requirements
COPY pyproject.toml .
RUN python -c "import pathlib, tomllib; \
project = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']; \
base, extras = project['dependencies'], project['optional-dependencies']; \
images = {'operator': ['operator'], 'runtime': ['runtime', 'cluster', 'hdf5', 'minari']}; \
[pathlib.Path(f'/{image}.txt').write_text('\n'.join(base + [line for extra in names for line in extras[extra]]) + '\n') \
for image, names in images.items()]"


# The code itself, without dependencies.
FROM base AS package
ARG PIP_INDEX_URL
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY runtime runtime
COPY operator operator
RUN pip install --no-deps --prefix=/install .


FROM base AS operator
ARG PIP_INDEX_URL
COPY --from=requirements /operator.txt /opt/hindcast/requirements.txt
COPY constraints.txt /opt/hindcast/
RUN pip install --constraint /opt/hindcast/constraints.txt --requirement /opt/hindcast/requirements.txt
COPY --from=package /install /usr/local
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="hindcast-operator" \
      org.opencontainers.image.description="Operator of Hindcast: offline reinforcement learning as Kubernetes resources" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 1000:1000
ENTRYPOINT ["hindcast-operator"]


FROM base AS runtime
# Which torch: `--build-arg TORCH=torch==2.13.0+cpu` with PIP_EXTRA_INDEX_URL for a CPU build; else the index's own.
ARG TORCH=torch
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY constraints.txt /opt/hindcast/
# torch has its own layer: it is most of the image and changes least. Headers, tests and build tools are removed, but
# not licenses, some of which lie in folders named `test`.
RUN pip install --constraint /opt/hindcast/constraints.txt "${TORCH}" \
    && cd /usr/local/lib/python3.11/site-packages \
    && rm -rf torch/include torch/share \
    && find torch/bin -type f ! -name torch_shm_manager -delete \
    && find . -name '*.dist-info' -prune -o -type d '(' -name test -o -name tests ')' -prune -exec rm -rf {} +
COPY --from=requirements /runtime.txt /opt/hindcast/requirements.txt
RUN pip install --constraint /opt/hindcast/constraints.txt --requirement /opt/hindcast/requirements.txt \
    && cd /usr/local/lib/python3.11/site-packages \
    && rm -rf pyarrow/include pyarrow/src ray/jars ray/cpp kubernetes/aio tensorboard_data_server \
    && find . -name '*.dist-info' -prune -o -type d '(' -name test -o -name tests ')' -prune -exec rm -rf {} +
# Ray pods send no usage reports. The NVIDIA runtime mounts the compute libraries only if asked.
ENV RAY_USAGE_STATS_ENABLED=0 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MPLCONFIGDIR=/tmp/matplotlib \
    XDG_CACHE_HOME=/tmp/cache
COPY --from=package /install /usr/local
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="hindcast-runtime" \
      org.opencontainers.image.description="Runtime of Hindcast: the pipeline, Ray and torch" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 1000:1000
CMD ["hindcast", "--help"]

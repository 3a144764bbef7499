# docker build -t eblvm .                              CPU
# docker build -t eblvm:cuda --build-arg VARIANT=cuda .  GPU: docker run --gpus all ...; torch's wheels bring CUDA along
ARG PYTHON=3.12
ARG VARIANT=cpu

FROM python:${PYTHON}-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
COPY constraints.txt /src/constraints.txt

FROM base AS torch-cpu
RUN pip install torch --index-url https://download.pytorch.org/whl/cpu

FROM base AS torch-cuda
RUN pip install torch triton

FROM torch-${VARIANT} AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install 'scikit-build-core>=0.11' cmake ninja
COPY . /src
RUN pip wheel --no-build-isolation --no-deps -w /wheels /src

FROM torch-${VARIANT}
COPY --from=build /wheels /wheels
RUN pip install /wheels/*.whl && rm -rf /wheels && useradd --create-home eblvm
USER eblvm
WORKDIR /home/eblvm
ENTRYPOINT ["eblvm"]
CMD ["--help"]

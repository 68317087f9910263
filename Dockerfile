# The prediction service in a container; docs/serving.md says how to run it.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir build hatchling && python -m build --wheel --no-isolation --outdir /wheels

FROM python:3.12-slim
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[web,onnx]" && rm -r /wheels
# No HOME and no entry in /etc/passwd: any --user works, also with --read-only --tmpfs /tmp.
USER 10001:10001
ENV CAPTUNE_CACHE=/tmp/captune HF_HOME=/tmp/huggingface HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
WORKDIR /
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=4)"]
# CAPTUNE_TOKEN must be set, because the service is reachable from outside the container.
ENTRYPOINT ["captune"]
CMD ["serve", "/model", "--host", "0.0.0.0"]

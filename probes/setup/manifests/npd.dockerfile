FROM registry.k8s.io/node-problem-detector/node-problem-detector:v1.36.0
RUN clean-install python3 python3-venv
COPY wheels /wheels
RUN python3 -m venv /opt/gdrtop && \
    /opt/gdrtop/bin/pip install --no-index --find-links /wheels gdrtop

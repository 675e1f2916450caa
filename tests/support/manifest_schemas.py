"""Schemas of what manifests may contain, strict about unknown keys.

By hand, from the CRDs of the GPU Operator v26.7.0, the Network Operator and OpenShift's
machine-config-operator, Ignition's schema of 3.2.0, Talos's config.schema.json and Node Problem Detector's
pkg/custompluginmonitor/types/config.go.

The CRDs themselves do not reject unknown keys: the API server removes them silently.
"""

from typing import Any

STRING = {"type": "string", "minLength": 1}
FLAG = {"type": "boolean"}
ENABLED = {
    "type": "object",
    "required": ["enabled"],
    "additionalProperties": False,
    "properties": {"enabled": FLAG},
}


def strict(required: list[str], **properties: Any) -> dict[str, Any]:
    """An object with these keys and no others."""
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


DRIVER = strict(
    [],
    enabled=FLAG,
    version={"type": "string", "pattern": r"^\d+\.\d+(\.\d+)?$"},
    kernelModuleType={"enum": ["auto", "open", "proprietary"]},
    rdma=strict(["enabled", "useHostMofed"], enabled=FLAG, useHostMofed=FLAG),
)
OPERANDS = {"driver": DRIVER, "gdrcopy": ENABLED, "devicePlugin": ENABLED, "dcgmExporter": ENABLED}
NVIDIA_DRIVER_PATCH = strict(
    ["spec"],
    spec=strict(
        ["rdma"], kernelModuleType=DRIVER["properties"]["kernelModuleType"], rdma={}, gdrcopy=ENABLED
    ),
)
CLUSTER_POLICY = strict(["spec"], spec=strict(["devicePlugin"], **OPERANDS))
HELM = strict(["driver", "devicePlugin"], **OPERANDS)
IMAGE = {"image": STRING, "repository": STRING, "version": STRING}
NIC_CLUSTER_POLICY = strict(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "mellanox.com/v1alpha1"},
    kind={"const": "NicClusterPolicy"},
    metadata=strict(["name"], name={"const": "nic-cluster-policy"}),
    spec=strict(
        ["rdmaSharedDevicePlugin"],
        ofedDriver=strict(
            ["image", "repository", "version", "env"],
            **IMAGE,
            env={
                "type": "array",
                "items": strict(
                    ["name", "value"],
                    name={
                        "enum": [
                            "UNLOAD_STORAGE_MODULES",
                            "ENABLE_NFSRDMA",
                            "RESTORE_DRIVER_ON_POD_TERMINATION",
                            "UNLOAD_THIRD_PARTY_RDMA_MODULES",
                        ]
                    },
                    value={"type": "string", "enum": ["true", "false"]},
                ),
            },
            upgradePolicy=strict(
                ["autoUpgrade"],
                autoUpgrade=FLAG,
                maxParallelUpgrades={"type": "integer", "minimum": 0},
                drain=strict(
                    ["enable"],
                    enable=FLAG,
                    force=FLAG,
                    deleteEmptyDir=FLAG,
                    timeoutSeconds={"type": "integer", "minimum": 0},
                ),
            ),
        ),
        rdmaSharedDevicePlugin=strict(["image", "repository", "version", "config"], **IMAGE, config=STRING),
    ),
)
NAMES = {"type": "array", "minItems": 1, "uniqueItems": True}
SHARED_DEVICE_PLUGIN = strict(
    ["configList"],
    configList={
        "type": "array",
        "minItems": 1,
        "items": strict(
            ["resourceName", "rdmaHcaMax", "selectors"],
            resourceName={"type": "string", "pattern": "^[a-z0-9_]+$"},
            rdmaHcaMax={"type": "integer", "minimum": 1},
            selectors=strict(
                ["vendors", "deviceIDs"],
                vendors={"const": ["15b3"]},
                deviceIDs={**NAMES, "items": {"type": "string", "pattern": "^[0-9a-f]{4}$"}},
                ifNames={
                    **NAMES,
                    "items": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$"},
                },
            ),
        ),
    },
)
ROLE_LABEL = "machineconfiguration.openshift.io/role"
MACHINE_CONFIG = strict(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "machineconfiguration.openshift.io/v1"},
    kind={"const": "MachineConfig"},
    metadata=strict(["name", "labels"], name=STRING, labels=strict([ROLE_LABEL], **{ROLE_LABEL: STRING})),
    spec=strict(
        ["config"],
        kernelArguments={"type": "array", "items": STRING},
        config=strict(
            ["ignition"],
            ignition=strict(["version"], version={"const": "3.2.0"}),
            storage=strict(
                ["files"],
                files={
                    "type": "array",
                    "minItems": 1,
                    "items": strict(
                        ["path", "mode", "contents"],
                        path={"type": "string", "pattern": "^/etc/"},
                        mode={"type": "integer", "minimum": 0, "maximum": 0o777},
                        overwrite=FLAG,
                        contents=strict(["source"], source={"type": "string", "pattern": "^data:,[!-~]+$"}),
                    ),
                },
            ),
        ),
    ),
)
MACHINE_CONFIG_POOL = strict(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "machineconfiguration.openshift.io/v1"},
    kind={"const": "MachineConfigPool"},
    metadata=strict(["name"], name=STRING),
    spec=strict(
        ["machineConfigSelector", "nodeSelector"],
        machineConfigSelector=strict(
            ["matchExpressions"],
            matchExpressions={
                "type": "array",
                "items": strict(
                    ["key", "operator", "values"],
                    key={"const": ROLE_LABEL},
                    operator={"enum": ["In"]},
                    values={"type": "array", "minItems": 2, "items": STRING},
                ),
            },
        ),
        nodeSelector=strict(["matchLabels"], matchLabels={"type": "object"}),
    ),
)
MODULE = {"enum": ["nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "mlx5_core", "mlx5_ib"]}
TALOS_MODULE = {"enum": [*MODULE["enum"], "ib_uverbs", "ib_umad"]}
SYSCTLS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
TALOS_MACHINE = strict(
    ["machine"],
    machine=strict(
        ["kernel", "sysctls"],
        kernel=strict(["modules"], modules={"type": "array", "items": strict(["name"], name=TALOS_MODULE)}),
        sysctls=SYSCTLS,
    ),
)
TALOS_DOCUMENT = {
    "oneOf": [
        strict(
            ["apiVersion", "kind", "name"],
            apiVersion={"const": "v1alpha1"},
            kind={"const": "KernelModuleConfig"},
            name=TALOS_MODULE,
        ),
        strict(
            ["apiVersion", "kind", "params"],
            apiVersion={"const": "v1alpha1"},
            kind={"const": "SysctlConfig"},
            params=SYSCTLS,
        ),
    ]
}
DURATION = {"type": "string", "pattern": "^[1-9][0-9]*s$"}
REASON = {"type": "string", "pattern": "^[A-Z][A-Za-z]+$"}  # CamelCase: the kubelet's and NPD's own
PLUGIN = strict(
    ["plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"],
    plugin={"const": "custom"},
    pluginConfig=strict(
        ["invoke_interval", "timeout", "max_output_length", "concurrency"],
        invoke_interval=DURATION,
        timeout=DURATION,
        max_output_length={"const": 80},
        concurrency={"const": 1},
        enable_message_change_based_condition_update=FLAG,
        skip_initial_status=FLAG,
    ),
    source={"const": "gdrtop"},
    metricsReporting=FLAG,
    conditions={
        "type": "array",
        "minItems": 1,
        "items": strict(["type", "reason", "message"], type=REASON, reason=REASON, message=STRING),
    },
    rules={
        "type": "array",
        "minItems": 1,
        "items": strict(
            ["type", "condition", "reason", "path", "args", "timeout"],
            type={"const": "permanent"},
            condition=REASON,
            reason=REASON,
            path={"type": "string", "pattern": "^/"},
            args={"type": "array", "items": STRING},
            timeout=DURATION,
        ),
    },
)

"""The parts of the Spark operators' resources that our manifests use.

Kubernetes' own schemas do not know them. These follow the definitions that the operators install:
`sparkoperator.k8s.io/v1beta2` of Kubeflow's 2.5.2, and `spark.apache.org/v1` of Apache's 1.0. A
field that is missing here is refused, so a new one must be looked up and added. What a pod is made
of (volumes, security contexts, …) is checked with Kubernetes' schema instead: see `pods_of`.
"""

from __future__ import annotations

from typing import Any

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_TEXTS = {"type": "array", "items": _TEXT}
_CONF = {"type": "object", "additionalProperties": _TEXT}
_ANY: dict[str, Any] = {}


def _object(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


def _resource(spec: dict[str, Any]) -> dict[str, Any]:
    metadata = _object(("name",), name=_TEXT, namespace=_TEXT)
    fields = ("apiVersion", "kind", "metadata", "spec")
    return _object(fields, apiVersion=_TEXT, kind=_TEXT, metadata=metadata, spec=spec)


_PORT = _object(
    ("containerPort", "name", "protocol"), containerPort=_NUMBER, name=_TEXT, protocol=_TEXT
)
_KUBEFLOW_POD: dict[str, Any] = {
    "cores": {"type": "integer", "minimum": 1},
    "coreLimit": _TEXT,
    "memory": _TEXT,
    "memoryOverhead": _TEXT,
    "serviceAccount": _TEXT,
    "terminationGracePeriodSeconds": _NUMBER,
    "env": _ANY,
    "envFrom": _ANY,
    "ports": {"type": "array", "items": _PORT},
    "podSecurityContext": _ANY,
    "securityContext": _ANY,
    "volumeMounts": _ANY,
}
_KUBEFLOW = _resource(
    _object(
        ("driver", "executor", "mainApplicationFile", "sparkVersion", "type"),
        type={"enum": ["Java", "Python", "Scala", "R"]},
        pythonVersion={"enum": ["2", "3"]},
        mode={"enum": ["cluster", "client"]},
        sparkVersion=_TEXT,
        image=_TEXT,
        imagePullPolicy=_TEXT,
        mainApplicationFile=_TEXT,
        arguments=_TEXTS,
        sparkConf=_CONF,
        restartPolicy=_object(
            type={"enum": ["Never", "Always", "OnFailure"]},
            onFailureRetries={"type": "integer", "minimum": 0},
            onFailureRetryInterval={"type": "integer", "minimum": 1},
            onSubmissionFailureRetries={"type": "integer", "minimum": 0},
            onSubmissionFailureRetryInterval={"type": "integer", "minimum": 1},
        ),
        volumes=_ANY,
        driver=_object(**_KUBEFLOW_POD),
        executor=_object(instances={"type": "integer", "minimum": 1}, **_KUBEFLOW_POD),
    )
)
_RESTART = _object(
    restartPolicy={"enum": ["Always", "Never", "OnFailure", "OnInfrastructureFailure"]},
    maxRestartAttempts=_NUMBER,
    restartBackoffMillis=_NUMBER,
)
_TEMPLATE = _object(podTemplateSpec=_ANY)
_APACHE = _resource(
    _object(
        ("runtimeVersions",),
        pyFiles=_TEXT,
        driverArgs=_TEXTS,
        sparkConf=_CONF,
        applicationTolerations=_object(restartConfig=_RESTART),
        driverSpec=_TEMPLATE,
        executorSpec=_TEMPLATE,
        runtimeVersions=_object(("sparkVersion",), sparkVersion=_TEXT),
    )
)
SCHEMAS = {"sparkoperator.k8s.io/v1beta2": _KUBEFLOW, "spark.apache.org/v1": _APACHE}


def pods_of(resource: dict[str, Any]) -> list[dict[str, Any]]:
    """The driver and the executor as plain pods, which Kubernetes' schema can check."""
    spec = resource["spec"]
    if resource["apiVersion"] == "spark.apache.org/v1":
        pods = [spec[part]["podTemplateSpec"]["spec"] for part in ("driverSpec", "executorSpec")]
    else:
        pods = [_kubeflow_pod(spec, spec[part]) for part in ("driver", "executor")]
    kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checked"}}
    return [{**kind, "spec": pod} for pod in pods]


def _kubeflow_pod(spec: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    names = ("env", "envFrom", "ports", "securityContext", "volumeMounts")
    container = {"name": "spark", "image": spec["image"]}
    container |= {name: part[name] for name in names if name in part}
    limits = {"cpu": part["coreLimit"], "memory": part["memory"]}
    container["resources"] = {"limits": limits}
    return {
        "containers": [container],
        "securityContext": part["podSecurityContext"],
        "volumes": spec["volumes"],
    }

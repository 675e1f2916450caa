"""The commands that install drivers, services and tools with a node's own package manager.

Sources: NVIDIA Driver Installation Guide 620 (kernel modules, table 5; Oracle Linux, for header packages),
NVIDIA/gpu-driver-container (install.sh: repositories, EPEL 8 to 10, Fabric Manager, nvlsm),
awslabs/amazon-eks-ami (install-nvidia-driver.sh: repository and kernel packages of Amazon Linux 2023),
Azure/azhpc-images (install_nvidiagpudriver.sh, install_nvidia_fabric_manager.sh, install_doca.sh,
versions.json), sndirsch.github.io and SUSE's specs of nvidia-video-G06, perftest and rdma-core (SLES),
microsoft/azurelinux (SPECS/perftest, pull request 8674; SPECS/rdma-core). Where none of them names the
command, there is none, and the guide is named instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probes.base.plan import Step, instruction
from probes.base.unknown import Maybe, Unknown, known, map_known
from probes.facts.system.packages import Distribution, Family
from probes.snapshot.examination import Examination

DRIVER_GUIDE = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"
DOCA_GUIDE = "https://docs.nvidia.com/doca/sdk/doca-host-installation-and-upgrade/"
KNOWN_SYSTEMS = "Ubuntu, Debian, RHEL and its like, Amazon Linux 2023, SLES 15 and Azure Linux 3"
FABRIC_MANAGER = "nvidia-fabricmanager"
_CUDA_REPOS = "https://developer.download.nvidia.com/compute/cuda/repos"
_EPEL = "https://dl.fedoraproject.org/pub/epel/epel-release-latest-{}.noarch.rpm"
_AZURE_REPO = "https://packages.microsoft.com/azurelinux/3.0/prod/nvidia/{}/config.repo"
_DOCA_HOST = "https://www.mellanox.com/downloads/DOCA/"
_KEYRING = "cuda-keyring_1.1-1_all.deb"
_DOWNLOADS = "/root"  # root's own directory: no other user can replace a file there
_OPERATOR_DRIVER = "Let the GPU Operator install the open kernel modules: gdrtop manifest clusterpolicy"
_OPERATOR_OFED = "Let the Network Operator install the NIC driver: gdrtop manifest nicclusterpolicy"
_TALOS_DRIVER = (
    "Create a Talos image with the extension nvidia-open-gpu-kernel-modules-production, and upgrade to it."
)
_TALOS_MODULES = "Load the modules by the machine configuration: gdrtop manifest talos"
_RED_HAT_STREAMS = ("8", "9")  # NVIDIA's repository has module streams for these
# The releases whose repository and packages a source names, the newest of each distribution last. Of another
# one, the guide is named: its repository may have another name, and its packages, too.
_RELEASES = {
    "ubuntu": ("ubuntu2004", "ubuntu2204", "ubuntu2404", "ubuntu2604"),
    "debian": ("debian12", "debian13"),
    "rhel": ("rhel8", "rhel9", "rhel10"),
    "sles": ("sles15",),
    "amzn": ("amzn2023",),
    "azl": ("azl3",),
}
KNOWN_RELEASES = tuple(release for releases in _RELEASES.values() for release in releases)
_LAST_TDNF = "azl3"  # Azure Linux 4 is built with dnf5; no source says whether it has tdnf, too
_AMAZON = "amzn2023"
_FEDORA = "fedora"  # has another `dnf config-manager`
_AMAZON_FIRST, _AMAZON_BRANCHES = "6.1", ("6.12", "6.18")  # the packages of all but the first name it
_FIRST_UNNUMBERED = 580  # from this branch on, every package of Fabric Manager is nvidia-fabricmanager

# The doca-host package of each release and processor: those of azhpc-images, which are tried together with
# the drivers of that list. NVIDIA's download page has more.
_DOCA_PACKAGES = {
    ("ubuntu2204", "x86_64"): "DOCA_v3.2.1/host/doca-host_3.2.1-044000-25.10-ubuntu2204_amd64.deb",
    ("ubuntu2404", "x86_64"): "DOCA_v3.2.3/host/doca-host_3.2.3-019000-25.10-ubuntu2404_amd64.deb",
    ("ubuntu2404", "aarch64"): "DOCA_v3.2.2/host/doca-host_3.2.2-035000-25.10-ubuntu2404_arm64.deb",
    ("rhel8", "x86_64"): "DOCA_v3.2.1/host/doca-host-3.2.1-044000_25.10_rhel8.x86_64.rpm",
    ("rhel9", "x86_64"): "DOCA_v3.2.2/host/doca-host-3.2.2-035000_25.10_rhel9.x86_64.rpm",
    ("azl3", "x86_64"): "DOCA_v3.2.1/host/doca-host-3.2.1-044000_25.10_alinux32.x86_64.rpm",
}
_NO_DOCA = ("9.8",)  # DOCA 3.2 does not build on its kernels without a patch (azhpc-images, install_doca.sh)

_INSTALL = {
    Family.DEBIAN: ("apt-get", "-y", "install"),
    Family.RED_HAT: ("dnf", "-y", "install"),
    Family.SUSE: ("zypper", "install"),  # it asks for consent to NVIDIA's license
    Family.AZURE_LINUX: ("tdnf", "-y", "install"),
}
PACKAGE_PROGRAMS = ("apt-get", "curl", "dnf", "dpkg", "rpm", "tdnf", "wget", "zypper")
_REFRESH = {
    Family.DEBIAN: Step("Update the package list", ("apt-get", "update")),
    Family.RED_HAT: Step("Clear the cached package list", ("dnf", "clean", "all")),
    Family.SUSE: Step("Update the package list", ("zypper", "--gpg-auto-import-keys", "refresh")),
    Family.AZURE_LINUX: Step("Clear the cached package list", ("tdnf", "clean", "all")),
}
_PERFTEST = {
    **dict.fromkeys(_INSTALL, ("perftest", "rdma-core", "libibverbs-utils", "infiniband-diags")),
    Family.DEBIAN: ("perftest", "rdma-core", "ibverbs-utils", "infiniband-diags"),
}
_VERBS = {
    Family.DEBIAN: ("libibverbs1", "ibverbs-providers"),
    Family.RED_HAT: ("libibverbs",),
    Family.SUSE: ("libibverbs1",),
    Family.AZURE_LINUX: ("libibverbs",),
}
_UNKNOWN_DISTRIBUTION = Distribution("", "", "", Family.OTHER)


def _distribution(examination: Examination) -> Distribution:
    return known(examination.distribution, _UNKNOWN_DISTRIBUTION)


def family_of(examination: Examination) -> Family:
    """Return the family of the node's distribution; OTHER if it is unknown."""
    return _distribution(examination).family


def _processor(examination: Examination) -> str:
    """Return "x86_64", "aarch64", or "" if it is unknown."""
    return known(map_known(examination.node.platform, lambda facts: known(facts.cpu_architecture, "")), "")


def _release_name(distribution: Distribution) -> str:
    """Return a release as NVIDIA's repositories name theirs: "ubuntu2404"; "" of other distributions.

    Also of releases that are not in KNOWN_RELEASES.
    """
    major = distribution.version.partition(".")[0]
    if not major.isdigit():
        return ""
    if distribution.id == "ubuntu":
        return f"ubuntu{distribution.version.replace('.', '')}"
    if distribution.id in ("debian", "sles", "amzn"):
        return f"{distribution.id}{major}"
    if distribution.family is Family.AZURE_LINUX:
        return f"azl{major}"
    is_rhel = distribution.family is Family.RED_HAT and distribution.id != _FEDORA
    return f"rhel{major}" if is_rhel else ""


def _known_releases(distribution: Distribution) -> str:
    """Return a sentence on the releases whose commands are known, if this one is not among them."""
    release = _release_name(distribution)
    releases = next((names for key, names in _RELEASES.items() if release.startswith(key)), ())
    if not releases or release in releases:
        return ""
    return f" gdrtop knows the commands of {', '.join(releases)}."


def install_steps(
    examination: Examination, why: str, packages: Mapping[Family, Sequence[str]], otherwise: str = ""
) -> tuple[Step, ...]:
    """Return the step that installs packages of the distribution; `otherwise` is what to do on others."""
    family, release = family_of(examination), _release_name(_distribution(examination))
    has_tool = family is not Family.AZURE_LINUX or release == _LAST_TDNF
    if family in packages and family in _INSTALL and has_tool:
        return (Step(why, (*_INSTALL[family], *packages[family])),)
    return (instruction(otherwise or why),)


def _repository_steps(examination: Examination) -> tuple[Step, ...]:
    """Return the steps that add NVIDIA's package repository; () where no source names them."""
    distribution, processor = _distribution(examination), _processor(examination)
    family, release = distribution.family, _release_name(distribution)
    if release not in KNOWN_RELEASES or not processor:
        return ()
    place = f"{_CUDA_REPOS}/{release}/{'sbsa' if processor == 'aarch64' else processor}"
    why = "Add NVIDIA's package repository"
    if family is Family.DEBIAN:
        file = f"{_DOWNLOADS}/{_KEYRING}"
        download = Step(
            "Download the key of NVIDIA's repository", ("wget", "-O", file, f"{place}/{_KEYRING}")
        )
        return (download, Step(why, ("dpkg", "-i", file)), _REFRESH[family])
    if family is Family.RED_HAT:
        epel = Step(
            "Add EPEL, which has DKMS", (*_INSTALL[family], _EPEL.format(release.removeprefix("rhel")))
        )
        add = Step(why, ("dnf", "config-manager", "--add-repo", f"{place}/cuda-{release}.repo"))
        return (epel, add) if release.startswith("rhel") else (add,)
    if family is Family.SUSE:
        file = "/etc/zypp/repos.d/cuda-sles15.repo"
        return (Step(why, ("curl", "-fsSL", "-o", file, f"{place}/cuda-sles15.repo")), _REFRESH[family])
    if family is Family.AZURE_LINUX:
        file = "/etc/yum.repos.d/azurelinux-nvidia-prod.repo"
        return (Step(f"{why} of Azure Linux", ("curl", "-fsSL", "-o", file, _AZURE_REPO.format(processor))),)
    return ()


def in_driver_container(examination: Examination) -> bool:
    """Return whether the GPU Operator's container has installed the driver."""
    facts = examination.driver_container
    return not isinstance(facts, Unknown) and facts.driver is True


def is_immutable(examination: Examination) -> bool:
    """Return whether packages cannot be installed on the node itself."""
    return family_of(examination) in (Family.COREOS, Family.TALOS, Family.CONTAINER_OS)


def open_driver_steps(examination: Examination) -> tuple[Step, ...]:
    """Return the steps that install the newest driver with open kernel modules."""
    distribution = _distribution(examination)
    if distribution.family is Family.TALOS:
        return (instruction(_TALOS_DRIVER), instruction(_TALOS_MODULES))
    if in_driver_container(examination) or is_immutable(examination):
        return (instruction(_OPERATOR_DRIVER),)
    family, release = distribution.family, _release_name(distribution)
    repository = _repository_steps(examination)
    why = "Install the driver with open kernel modules"
    if not repository:
        name = distribution.name or "this distribution"
        guide = (
            f"{why} (nvidia-open) as described at {DRIVER_GUIDE} for {name}. It lists the systems that NVIDIA"
            f" supports.{_known_releases(distribution) or f' gdrtop knows the packages of {KNOWN_SYSTEMS}.'}"
        )
        return (header_step(examination), instruction(guide))
    if family is Family.AZURE_LINUX:  # its modules are built for its kernels
        package = "cuda-open-hwe" if _processor(examination) == "aarch64" else "cuda-open"
        return (*repository, Step(why, (*_INSTALL[family], package)))
    if family is Family.SUSE:  # the same
        packages = ("nvidia-open-driver-G06-signed-cuda-kmp-default", "nvidia-drivers-minimal-G06")
        return (*repository, Step(why, (*_INSTALL[family], *packages)))
    stream = Step(
        "Choose the open kernel modules", ("dnf", "-y", "module", "enable", "nvidia-driver:open-dkms")
    )
    has_stream = release.removeprefix("rhel") in _RED_HAT_STREAMS or distribution.id == "amzn"
    choice = (stream,) if has_stream else ()
    return (header_step(examination), *repository, *choice, Step(why, (*_INSTALL[family], "nvidia-open")))


def ofed_steps(examination: Examination) -> tuple[Step, ...]:
    """Return the steps that install DOCA-OFED, which nvidia_peermem needs."""
    if is_immutable(examination):
        return (instruction(_OPERATOR_OFED),)
    distribution, headers = _distribution(examination), header_step(examination)
    path = _DOCA_PACKAGES.get((_release_name(distribution), _processor(examination)))
    family = distribution.family
    if path is None or distribution.version in _NO_DOCA:
        if family not in (Family.DEBIAN, Family.RED_HAT):
            return (headers, instruction(f"Install DOCA-OFED as described at {DOCA_GUIDE}."))
        add: tuple[Step, ...] = (
            instruction(f"Download and install doca-host for this release: {DOCA_GUIDE}"),
        )
    else:
        name = path.rpartition("/")[2]
        file = f"{_DOWNLOADS}/{name}"
        tool = ("wget", "-O") if family is Family.DEBIAN else ("curl", "-fsSL", "-o")
        package = ("dpkg", "-i") if family is Family.DEBIAN else ("rpm", "-U", "--replacepkgs")
        add = (
            Step("Download the repository of DOCA-OFED", (*tool, file, f"{_DOCA_HOST}{path}")),
            Step("Add the repository of DOCA-OFED", (*package, file)),
        )
    return (headers, *add, _REFRESH[family], Step("Install DOCA-OFED", (*_INSTALL[family], "doca-ofed")))


def header_step(examination: Examination) -> Step:
    """Return the step that installs the running kernel's headers; DKMS needs them."""
    release = examination.node.kernel_release
    why = "Install the running kernel's headers, which DKMS needs"
    if isinstance(release, Unknown):
        return instruction(f"{why}.")
    packages: dict[Family, tuple[str, ...]] = {
        Family.DEBIAN: (f"linux-headers-{release}",),
        Family.AZURE_LINUX: (f"kernel-devel-{release}",),
    }
    if package := _red_hat_headers(release):
        packages[Family.RED_HAT] = (package,)
    return install_steps(examination, why, packages, f"{why} (those of {release}).")[0]


def _red_hat_headers(release: str) -> str:
    """Return the package of a kernel's headers; "" for a branch of Amazon Linux without a source."""
    branch = ".".join(release.split(".")[:2])
    if f".{_AMAZON}." in release and branch != _AMAZON_FIRST:
        return f"kernel{branch}-devel-{release}" if branch in _AMAZON_BRANCHES else ""
    if release.endswith("+64k"):
        return f"kernel-64k-devel-{release.removesuffix('+64k')}"
    return f"kernel-uek-devel-{release}" if "uek" in release else f"kernel-devel-{release}"


def fabric_manager_steps(examination: Examination, version: Maybe[str]) -> tuple[Step, ...]:
    """Return the step that installs Fabric Manager in the driver's version; it starts with no other."""
    if isinstance(version, Unknown):
        return (
            instruction(f"Install the {FABRIC_MANAGER} package that exactly matches the driver's version"),
        )
    branch = version.partition(".")[0]
    is_unnumbered = branch.isdigit() and int(branch) >= _FIRST_UNNUMBERED
    numbered = f"{FABRIC_MANAGER}-{branch}"
    deb = FABRIC_MANAGER if is_unnumbered else numbered
    rpm = FABRIC_MANAGER if is_unnumbered else "nvidia-fabric-manager"
    packages = {
        Family.DEBIAN: (f"{deb}={version}*",),
        Family.RED_HAT: (f"{rpm}-{version}",),
        Family.SUSE: (f"{rpm}={version}",),
        Family.AZURE_LINUX: (f"nvidia-fabric-manager-{version}",),
    }
    why = f"Install {FABRIC_MANAGER} {version}, which has to match the driver"
    if is_unnumbered and _distribution(examination).id == "ubuntu":
        why = f"{why} (with Ubuntu's own driver, the package is {numbered})"
    if _distribution(examination).id == "debian":
        why = f"{why}, from NVIDIA's package repository (Debian has none)"
    return install_steps(examination, why, packages, f"Install version {version} of {FABRIC_MANAGER}")


def nvlsm_steps(examination: Examination) -> tuple[Step, ...]:
    """Return the step that installs NVLSM, which is in the repository that has the driver."""
    packages = dict.fromkeys((Family.DEBIAN, Family.RED_HAT), ("nvlsm", "infiniband-diags"))
    why = "Install NVLSM from NVIDIA's package repository"
    return install_steps(
        examination, why, packages, "Install the package nvlsm from NVIDIA's CUDA repository"
    )


def perftest_steps(examination: Examination) -> tuple[Step, ...]:
    """Return the steps that install the distribution's perftest; () where its packages are unknown."""
    if family_of(examination) not in _PERFTEST:
        return ()
    text = "The distribution's perftest may be built without CUDA; check with gdrtop bench --list."
    install = install_steps(examination, "Install perftest and the RDMA tools", _PERFTEST)
    return (*install, instruction(text, needs_root=False))


def verbs_steps(examination: Examination) -> tuple[Step, ...]:
    """Return the step that installs libibverbs and its providers."""
    otherwise = "Install libibverbs and its providers, or OFED/DOCA"
    return install_steps(examination, "Install libibverbs, unless OFED/DOCA brings it", _VERBS, otherwise)

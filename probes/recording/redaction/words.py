"""Words that a redacted recording keeps: of Linux, PCI, GPUs, RDMA and NCCL, never of a site.

Words that checks and screens look for must be here; tests/probes/recording/test_redaction_checks.py names
missing ones. Product names are listed one by one because serial numbers have the same form.
"""

from __future__ import annotations

import re
from functools import lru_cache

from probes.facts.kernel.modules import COMPANIONS, CORE_LADDER
from probes.facts.system.services import SERVICES
from probes.facts.system.tools import TOOLS

# Directories and files of the system, and attributes of the kernel.
_PATHS = """
    bin boot class dev devices dkms drivers driver etc fs home init.d install kernel lib lib64 local log
    misc mm module modules net opt proc power rc.d rc3.d rc5.d run sbin secrets share src sys system tmp
    user usr var virtual bus block site-packages dist-packages vllm conda venv .venv python rdma infiniband
    infiniband_verbs infiniband_mad .containerenv .dockerenv .driver-ready kubernetes.io serviceaccount
    hwdata pci.ids extra updates weak-updates kmod kmods build source arch ofa_kernel mlnx-ofed-kernel
    mlnx-ofa_kernel mlnx-ofa_kernel-modules mlnx ofed openib nvidia-open nvidia-server nvidia-srv nvidia-fs
    gdrdrv-dkms kernel-mft kernel-mft-dkms mft iser isert srp original_module make.log modules.dep
    modules.builtin modules.symbols module.symvers modules.order modules.alias x86 amd intel arm arm64 amd64
    ethernet mellanox hw ulp core video infiniband-diags gpu-drivers modprobe.d modprobe.conf modules-load.d
    limits limits.conf limits.d nccl.conf .nccl.conf nvidia.conf rdma.conf mlx4.conf mlx5.conf
    infiniband.conf nvidia-peermem.conf nvidia-uvm.conf nv_peer_mem.conf peermem.conf gdrcopy.conf
    gdrdrv.conf mlnx.conf ib_ipoib.conf vfio.conf vfio-pci.conf blacklist.conf nvidia-fs.conf
    nvidia-graphics-drivers-kms.conf blacklist-nouveau.conf nvidia-installer-disable-nouveau.conf
    systemd.conf system.conf system.conf.d system.slice user.slice init.scope machine.slice
    sysinit.target.wants multi-user.target.wants kubepods kubepods.slice kubepods-besteffort.slice
    kubepods-burstable.slice besteffort burstable pod docker libpod crio cri-containerd cri containerd lxc
    lxc.payload slurm slurmstepd slurmstepd.scope slice scope service session step batch extern task job
    jobid pbs pbs_jobs.service pbspro torque lsf sge htcondor uid containerd.service containerd.service.d
    crio.service crio.service.d docker.service docker.service.d kubelet.service kubelet.service.d
    slurmd.service slurmd.service.d ssh.service sshd.service ssh.service.d sshd.service.d pbs_mom.service
    pbs_mom.service.d nv_peer_mem.service memlock.conf override.conf uevent config resource vendor device
    subsystem_vendor subsystem_device revision irq enable numa_node local_cpus local_cpulist iommu
    iommu_group iommu_groups physfn virtfn power_state runtime_status current_link_speed current_link_width
    max_link_speed max_link_width aer_dev_correctable aer_dev_fatal aer_dev_nonfatal msi_bus reset_method
    broken_parity_status dma_mask_bits d3cold_allowed boot_vga ari_enabled sriov_numvfs sriov_totalvfs
    hca_handle hca_object rdma.max rdma.current cgroup.controllers
    board_id hca_type fw_ver node_desc node_guid node_type sys_image_guid hw_rev ports gids gid_attrs ndevs
    types lid lid_mask_count sm_lid sm_sl cap_mask link_layer phys_state rate state pkeys counters
    hw_counters tc traffic_class ecn roce_rp roce_np ibdev abi_version carrier carrier_changes operstate mtu
    flags address addr_len dev_id dev_port speed duplex ifindex iflink type queues statistics settings qos
    pfc trust prio buffer_size cnp_dscp online possible present cpulist cpumap distance meminfo memtotal
    memfree bufinfo dma_buf debug sync_file memory_peers nv_mem num_alloc_mrs num_dealloc_mrs
    num_dereg_bytes num_reg_bytes num_reg_pages num_dereg_pages num_free_callbacks version refcnt initstate
    srcversion parameters taint holders coresize options peerdirect_support persistent_api_support
    sig_enforce nvreg_registrydwords grdmapcitopocheckoverride registrydwords
    peermappingoverride enablestreammemops dmaremappeermmio dmi product_name
    product_version board_name board_vendor sys_vendor bios_version bios_vendor chassis_type hostname
    osrelease ostype cmdline modules_disabled dmesg_restrict kptr_restrict cpuinfo mounts mountinfo comm
    environ maps status stat fd fdinfo cgroup cgroup.procs cpuset route ipv6_route tcp tcp6 self ns firmware
    efi efivars secureboot-8be4df61-93ca-11d2-aa0d-00e098032b8c hypervisor xen capabilities security
    lockdown params information gpus nvidia-topologyd virtualtopology.xml topo.xml ndv4 ndv5 nccl
    sharp hpcx
    dscp pcp dscp2prio mapping receive total_size len ratelimit unlimited tsa vendor cable configuration
    enabled app prio_pfc pfc_cap macsec_bypass delay dscp_prio rdma_cm default_roce_tos dcbx
    ipv4 rp_filter arp_ignore arp_announce arp_filter rule table main priority src srclen dst gateway
    nccl_rdma_sharp_plugin bond bonding slaves active_slave active-backup balance-xor
    mode misc_cmd os-release passwd systemd topology
    shm hugepages pci id kvm md0 srv scratch control_d filesystems uptime loadavg infiniband_cm issm fabric
    nvlink nvlinks nvswitch numa topo.xml vpd
"""
# Boot loaders, kernels on disk, keys, Slurm, and files of Kubernetes and of NVIDIA's operators.
_SETUP = """
    grub grub2 grub.d grub.cfg grubenv loader loader.conf entries update-initramfs update-grub dracut
    mkinitcpio ostree-booted ostree staged-deployment machine-config-daemon shim-signed mok mok.der mok.pub
    pki akmods certs public_key.der framework.conf framework.conf.d mok_certificate
    stubinfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f loaderinfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
    loaderentryoneshot-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f
    loaderentrydefault-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f systemd-boot grub_default grub_enable_blscfg
    grub_flavour_order grub_top_level saved_entry next_entry saved variant_id chassis_asset_tag
    nvidia-uninstall efa_installed_packages slurm slurm.conf slurm-llnl conf prolog prolog.sh
    healthcheckprogram nhc propagateresourcelimitsexcept slurm-smd-slurmd slurm-wlm-slurmd ofed-scripts
    kubelet.conf kubeadm-flags.env rancher k3s rke2 snap microk8s k0s azure.json kubernetes cache
    mellanox validations .driver-ctr-ready driver-ready nvidia-peermem-ready nvidia-fs-ready gdrcopy-ready
    mofed-ready toolkit-ready plugin-ready cuda-ready nvidia-driver-ctr nvidia-peermem-ctr nvidia-fs-ctr
    nvidia-gdrcopy-ctr mofed-container openshift-driver-toolkit-ctr k8s-driver-manager oc
    clusterpolicies.nvidia.com nvidiadrivers.nvidia.com nicclusterpolicies.mellanox.com nodes pods logs get
    app.kubernetes.io component nvidia-driver nvidia.com ofed-driver network.nvidia.com
    operator.mofed.wait feature.node.kubernetes.io pci-15b3.present kernel-version.full helm.sh chart
    kubernetes.io spec.nodename cluster-policy nic-cluster-policy gpu-operator gpu.present
    gpu.deploy.driver gpu-driver-upgrade-state gpu-operator.driver.owner pre-installed
    rdma_shared_device_a notready error crashloopbackoff completed containercreating podinitializing
    imagepullbackoff errimagepull doca-driver k8s-rdma-shared-dev-plugin
    vpc.amazonaws.com mellanox.com openshift.io upgrade-done upgrade-required
    doesn string owned any clusterpolicies nvidiadrivers nicclusterpolicies logged unauthorized
    credentials matches kind localhost 8080 configuration provided timeout deadline exceeded unable connect
    route dial tls x509 certificate server type forbidden notfound installed successfully loaded signal
    gdr nv_p2p_persistent nvidia-compute-utils-g06 init_on_alloc hpe hpe_cray_ex254n ofi-nccl amazon
    efa-nv-peermem cray-cxi-driver 64kb
    drivers linux-modules kernel-modules-core nvidia-driver-cuda efi opt topo.xml
"""
# Modules, and companions of GPU and RDMA drivers.
_MODULES = """
    ib_core ib_uverbs ib_umad ib_cm ib_ipoib ib_iser ib_isert ib_srp ib_srpt ib_ucm iw_cm rdma_cm rdma_ucm
    rdma_rxe siw mlx4_core mlx4_ib mlx4_en mlx5_core mlx5_ib mlx5_fpga_tools mlx5_vdpa mlxfw mlxdevm
    mlx_compat mst_pciconf mst_pci nvidia nvidia_uvm nvidia_modeset nvidia_drm nvidia_peermem nv_peer_mem
    nvidia_fs nvidia_cap_imex nvidia_vgpu_vfio gdrdrv nouveau nova_core vfio vfio_pci vfio_pci_core
    vfio_iommu_type1 pci_stub pciback xen_pciback efa irdma bnxt_re bnxt_en cxi hns_roce qedr ocrdma i40iw
    cxgb4 iw_cxgb4 erdma mana mana_ib hfi1 rdmavt usnic knem xpmem rpcrdma nvme_rdma nvmet_rdma nvme_core
    psample tls tls_sw macsec pci_hyperv_intf lnet ko_iblnd lustre kiblnd rds_rdma smc video i2c_core drm
    drm_kms_helper ttm backlight rxe memtrack iser isert srp amdgpu i915 xe ast mgag200 ib_sa ib_mad ib_addr
    efa_nv_peermem cxi_ss1 cxi_user cxi_eth
    ib_mthca mthca compat ipv6 udp_tunnel ip6_udp_tunnel netfs nfs nfsd
"""
_SERVICES = """
    systemd systemd-modules-load sysinit multi-user openibd opensm opensmd opensmd.service kubelet dockerd
    nvidia-caps-imex-channels nodes_config.cfg
    nvidia-persistenced nvidia-fabricmanager nvidia-imex nvidia-dcgm nvidia-powerd dcgm nvsm nvsm-core
    rdma-ndd rdma-load-modules rdma-hw.target rdma-ndd.service ibacm.service srp_daemon.service
    s99nv_peer_mem s99openibd subsystem socket target timer mount unit fabricmanager imex persistenced
    peermem
"""
# Vendors and machines, one by one: a serial number looks like a product.
_PRODUCTS = """
    nvidia mellanox broadcom intel amd dell hpe hp lenovo supermicro inc corp corporation ltd technologies
    gigabyte asus asustek asustekcomputer quanta wiwynn inspur foxconn qct tyan ibm cisco fujitsu bull atos
    amazon google microsoft oracle alibaba cloud ec2 compute engine vmware virtualbox innotek gmbh parallels
    nutanix ahv apple virtualization hvm domu bhyve openstack openshift kubevirt rhev qemu bochs red hat
    standard pc q35 ich9 i440fx machine virtual platform hypervisor poweredge proliant thinksystem
    superserver apollo cray ex metal ecs xe9680 xe8545 xe8640 xe9640 r750xa r760xa dl380 dl385 sr670 sr675
    xe9780 ac
    sys-821ge-tnhr sys-421ge-tnrt sys-420gp-tnar as-8125gs-tnhr dgxa100 dgxh100 dgxh200 dgxb200 dgx hgx mgx
    egx gb200 gb300 nvl nvl72 nvl36 nvl4 920-23687-2530-000 dgx-1 dgx-2 dgx-h100 g593 g593-sd0
    virtual-machine gen10 gen11 gen12 grace hopper blackwell ampere ada lovelace volta turing pascal geforce
    gtx rtx quadro tesla titan graphics generation laptop super ti pro server edition max-q workstation
    a100-sxm4-80gb a100-sxm4-40gb a100-pcie-40gb a100-pcie-80gb v100-sxm2-32gb v100-sxm2-16gb v100-pcie-16gb
    v100-pcie-32gb v100-sxm3-32gb sxm sxm2 sxm3 sxm4 sxm5 sxm6 pcie hbm2 hbm2e hbm3 hbm3e connectx bluefield
    genuineintel authenticamd gb10 thor orin superchip 80g series gh200 480gb mig
"""
_SYSTEMS = """
    linux ubuntu debian rocky almalinux centos rhel fedora suse sles opensuse leap tumbleweed enterprise
    stream oracle amazon azure gke eks flatcar talos coreos cos bottlerocket photon gnu lts release server
    core jammy noble focal bookworm trixie bullseye blue onyx green obsidian plow ootpa coughlan maipo
    pretty_name name id id_like version_id x86_64 aarch64 arm64 amd64 i686 ppc64le riscv64 noarch
    aarch64-linux-gnu x86_64-linux-gnu generic lowlatency hwe nvidia-64k azure-nvidia 64k aws gcp kvm smp
    preempt preempt_dynamic dkms rt tegra cloud default fips uek uekr mainline elrepo lt ml zfs pve unix
    open closed proprietary gpl dual mit bsd nvrm kernel-open build-deps mlnx_ofed_linux ofed ofed-internal
    doca doca-ofed internal rdma-core mlnx_ofed perftest gdrcopy nvbandwidth cuda cuda-toolkit nccl-tests
    infiniband-diags libibverbs1 ibverbs-providers ibverbs-utils libmlx5-1 librdmacm1 iproute2 iproute
    pciutils numactl ethtool mstflint mft dpkg rpm apt noble-updates jammy-updates bpo ofi aws-ofi-nccl ucx
    ucc openmpi mpich pmix prrte hcoll
"""
# Kernel messages about links, ports, limits and errors; gdrtop's own words for what is unknown.
_KERNEL = """
    active init armed down up polling disabled linkup sleep linkerrorrecovery phytest
    portconfigurationtraining initialize arm defer unknown dormant notpresent lowerlayerdown testing ca
    switch router rnic usnic unspecified ethernet infiniband edr hdr ndr xdr fdr fdr10 qdr ddr sdr gb gt sec
    roce v1 v2 ib mb kb bytes kib mib gib identity dma dma-fq blocked none integrity confidentiality true
    false yes no on off live coming going loading unloading y n u r s d z t x i b c e o f p w a limit soft
    hard units max locked memory unlimited infinity open files memlock limitmemlock defaultlimitmemlock
    running sleeping stopped zombie dead idle disk traced threads tgid pid ppid nspid cpus_allowed_list
    cpus_allowed mems_allowed_list mems_allowed vmpeak vmsize vmlck vmpin vmhwm vmrss vmdata vmstk vmexe
    vmlib vmpte vmswap rssanon rssfile rssshmem vendor_id implementer architecture genuine lm cpu model gpu
    uuid irq video bios size mask location minor excluded product brand part number not loaded library
    mismatch simulated build rxerr badtlp baddllp rollover timeout nonfatalerr correctableinterr headerof
    total_err_cor dlp sdes fcp tlp cmplto cmpltto cmpltabrt unxcmplt unxcmpltto rxof malftlp ecrc unsupreq
    acsviol uncorrintErr uncorrinterr blockedtlp atomicopblocked tlpblockederr poisontlpblocked
    total_err_fatal total_err_nonfatal donotcare undefined pci_class pci_id pci_slot_name pci_subsys_id
    modalias bus major devname devtype vl15_dropped excessive_buffer_overrun_errors link_downed
    link_error_recovery local_link_integrity_errors multicast_rcv_packets multicast_xmit_packets
    port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
    port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data
    port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets
    unicast_xmit_packets duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err np_cnp_sent
    np_ecn_marked_roce_packets out_of_buffer out_of_sequence packet_seq_err req_cqe_error
    req_cqe_flush_error req_remote_access_errors req_remote_invalid_request req_transport_retries_exceeded
    resp_cqe_error resp_cqe_flush_error resp_local_length_error resp_remote_access_errors rnr_nak_retry_err
    roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans
    rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_dct_connect rx_icrc_encapsulated rx_read_requests
    rx_write_requests rx_bytes rx_packets rx_drops tx_bytes tx_packets retrans_bytes retrans_pkts
    retrans_timeout_events alias symbol blacklist install softdep remove pre post export_symbol
    export_symbol_gpl vmlinux printk bin exp_name ino count total objects attached attachment obj nv_dmabuf
    exporter shared exclusive fence dmabuf boot_image root rootfstype rootflags ro rw quiet splash initrd
    nfsroot ip nomodeset vt.handoff iommu intel_iommu amd_iommu iommu.passthrough iommu.strict pt
    passthrough strict nopt igfx_off sm_on pgtbl_v1 pgtbl_v2 pci realloc assign-busses noacs config_acs
    disable_acs_redir pcie_acs_override downstream multifunction noaer nomsi bfsort pcie_aspm pcie_ports
    performance native module_blacklist modprobe.blacklist rd.driver.blacklist hugepages hugepagesz
    default_hugepagesz transparent_hugepage always madvise never console ttys0 ttys1 tty0 tty1 tty
    mitigations auto nosmt isolcpus nohz_full rcu_nocbs poll tsc reliable selinux apparmor audit crashkernel
    panic numa_balancing numa systemd.unified_cgroup_hierarchy cgroup_no_v1 all cgroup_enable biosdevname
    net.ifnames processor.max_cstate intel_idle.max_cstate intel_pstate amd_pstate nvidia-drm.modeset
    rd.luks.uuid rd.lvm.lv rd.md.uuid swiotlb mem ext2 ext3 ext4 xfs btrfs nfs nfs4 ceph lustre gpfs beegfs
    fuse fuse.sshfs overlay tmpfs devtmpfs sysfs proc cgroup2 debugfs securityfs efivarfs pstore bpf
    configfs squashfs vfat iso9660 9p virtiofs wekafs hugetlbfs mqueue tracefs rpc_pipefs autofs nodev
    relatime noatime nosuid noexec vers proto udp rdma6 addr mountaddr clientaddr rsize wsize timeo retrans
    local_lock port intr nolock devpts binfmt_misc ramfs zfs nvmeof iscsi nvme-tcp nvme nvrm xid sxid has
    fallen the at rminitadapter failed api client kernel probe routine fatal nonfatal non-fatal link minion
    fault data error ltssm interrupt row remapping failure pending page ecc double bit uncontained contained
    channel engine name process reset required nvlink gsp rpc waiting for expected function gsp_rm_control
    heartbeat assert mmu processing exception graphics smm illegal instruction preemptive cleanup unable to
    copy access bar1 importer handle mmio topology supported force_pcie disagrees about version of err magic
    should be unsigned module is rejected key unavailable verification signature and or missing tainting
    lockdown restricted see man kernel_lockdown.7 direct unsafe parameters raw io nvidia-peermem
    nv_get_p2p_free_callback nv_mem_client nv_peer_mem detected invalid context skipping further available
    bandwidth limited by with capable insufficient power slot high temperature overheat event cable
    unplugged plugged budget mlx5_cmd_out_err mlx5_pcie_event mlx5_cmd_check cmd_work_handler will cause
    leak resource mlx5_crdump_collect wait_func wait_func_handle_exec_timeout access_reg create_mkey
    create_qp create_cq modify_qp manage_pages op_mod status bad parameter bad_res_err no_res_err lim_err
    exceed_lim syndrome synd bad_param_err sys_state mlx5_health_try_recover mlx5_health_compromised
    poll_health print_health_info health_recover_work mlx5_fw_fatal mlx5_handle_bad_state
    mlx5_error_sw_reset mlx5_enter_error_state error_sw_reset assert_var assert_exit_ptr assert_callra
    assert_exit fw_ver hw_id irisc_index ext_synd raw_fw_ver severity health compromised reached miss issue
    internal hw firmware recovery mlx5_unload_one mlx5_load_one device health's critical seen start reg mr
    aer pcie multiple corrected uncorrected uncorrectable correctable received from layer transaction
    physical first requester receiver transmitter completer ordering inaccessible broadcast error_detected
    dmar drhd handling write read request reason pte set present nonzero reserved fields address amd-vi
    logged io_page_fault domain flags arm-smmu arm-smmu-v3 unhandled f_translation info task more than
    seconds symbol_get peer registered still wedged in this that its into over while was are there here have
    cannot can't found such file directory permission denied operation permitted requires even must run as
    input output argument too many levels long connection refused try again reading buffer dmesg journalctl
    module_signing trying reinsert already exists line lines entries time out took takes answer answered
    answers end ended command commands driver drivers tree nothing could did does do cuda nvml initialized
    uninitialized lost gone devices ready asked ask known tells tell only one two where which who why what
    when without within near other others another same whose left right longer gdrtop verbs libibverbs
    provider opening older registering uverbs recorded recording moment crashed modern minute counter
    wrapped rate needs readings yet hidden mounted hidepid keeps processes booted uefi neither nor instead
    beyond 64 config confidential computing empty blank maker pcieport nvidia-nvlink numa_node0 node0 type1
    iommu0 smmuv3 ivrs show property showformat query search package queryformat activestate loadstate
    unitfilestate inactive activating deactivating reloading masked static enabled indirect generated
    transient linked fabric manager manager's version: ok fail check acs correct action after async attach
    autogenerated changed container dma-buf faulted functions gpu0 grace_rp image incorrect
    kubernetes_service_host ssh_connection mapping marked mod_unload modversions new nv_mem_param_conf_check
    nvidiactl nvidia-nvswitch nvidia-uvm-tools nvidia-caps oe poe oex param query_vport_state reboot reload
    reg_mr_callback remapper response struct value values mlx5 mlx4 mthca path switches config.gz
    iface destination gateway metric use irtt window
    auxiliary because completed copy-on-fork cuinit libcuda netns null progress returned mlx5_ib.rdma hostname
    .nccl.conf cwd localhost localdomain system nic nics pcilink c2c grid xc0 xc1 netir netir_link_evt
    netir_ber_event netir_int saw_mvb saw_egr saw_pvtpm rlw_ctrl rlw_remap rlw_rspcol rlw_rxpipe
    rlw_src_track evt unrecovered interface
    attribute but containers database directories exit exited finished host interface know lists much own
    queried regular their
    cap thermal brake sync boost slowdown board reliability rc uc ud gsi smi raw_packet raw_ipv6
    raw_ethertype xrc_ini xrc_tgt rtr rts sqd sqe
"""
# Values of NCCL, UCX, libfabric and NVSHMEM variables.
_SETTINGS = """
    info warn trace version abort init coll p2p shm net graph tuning env alloc call proxy nvls bootstrap reg
    profile ras ring tree collnet collnetdirect collnetchain nvlstree pat ll ll128 simple ib socket efa aws
    libfabric ucx none auto loc pix pxb pxn phb node sys nvl sp c2c p2c dis default all spcx ib,self rc ud
    dc rc_mlx5 ud_mlx5 dc_mlx5 rc_x dc_x ud_x rc_verbs cuda cuda_copy cuda_ipc gdr_copy sm self tcp posix
    sysv cma knem xpmem mm efa;ofi_rxm ofi_rxm verbs tcp;ofi_rxm sockets psm2 psm3 opx cxi ibrc ibdevx ibgda
    ibuc fastest_first pci_bus_id void nodevfiles lo af_inet af_inet6 sharp spectrum nccl_spectrum ofi
    aws-ofi google-fastsocket fastsocket gpudirecttcpx fabric-x port all-ports
    expandable_segments true false max_split_size_mb garbage_collection_threshold
    roundup_power2_divisions cudamallocasync native
"""
# Words of sentences that gdrtop writes itself: titles of plans, commands, results of bandwidth tests. A name
# on a node can be plain English too: OWN_WORDS are kept in gdrtop's text only.
_SENTENCES = """
    --force --import --now --processes --revoke-import --subsystem-match -a -b -c -d -f -i -k -m -n -p -pm
    -q -r -s -x → · × 10-bit ack against allow an aspm ats ats_enabled autoinstall behind below between
    bind blacklists both bridge bring built bus bandwidth cap_exp+10.w cap_exp+8.w carries change chipset
    clear clone clusterpolicy configure could create denies depmod devlink different disable disables
    distribution ecap_acs+6.w enable_rdma enlarge enough enroll errors every excludes faster few find fix
    flapping forbids full get gid git github.com give gpudirect https installed it itself
    kernel.modules_disabled legacy less let limited limits links linux-rdma load login logins loopback
    lower measure messages mkdir mknod mlxfwmanager mok mok.der nearby nearest need newer nodes old optic
    optics overrides packet pair pass peer-memory per perfquery perftest.git persistence plugin pre-ampere
    profiles raise ranks rates re-create reaches redirect redirects register relaxed relies replace report
    reported reports responding restart rings runs saving selects sending sends sessions shim-signed shows
    sign signal slow smaller sminfo so stack starts stays stop subnet supports symbols tags them then
    these timeouts trees trigger turn udevadm under undo unload unloaded update usable uses using versions
    vgpu way whether wrongly yaml ends host memory sudo by nothing measured median seconds than half steps
    none can undone since has rebooted already another user log press select whose others --report_gbits
    --use_cuda_bus_id --use_cuda --use_cuda_dmabuf rdma_write rdma_read ssh
"""
# Programs of such nodes; other programs can have private names.
_PROGRAMS = """
    init systemd systemd-journald systemd-udevd systemd-logind sshd bash sh zsh dash sudo tmux screen env
    numactl taskset python python3 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13 pypy3
    perl java node torchrun deepspeed accelerate mpirun mpiexec mpiexec.hydra orterun orted prterun prted
    prte srun slurmd slurmstepd slurmctld sbatch pbs_mom kubelet containerd containerd-shim
    containerd-shim-runc-v2 dockerd docker crio conmon runc nvidia-container-runtime tini dumb-init pause
    s6-svscan supervisord ray raylet vllm tritonserver trtllm-serve nv-hostengine nv-fabricmanager nvlsm
    nv-fabricmanage nvidia-smi dcgm-exporter dcgmi nvidia-cuda-mps-server nvidia-cuda-mps-control
    nvidia-device-plugin nvidia-cuda-mps nvidia-device-p nvtop xorg ibacm srp_daemon nvidia-persistenced
    nvidia-persiste nvidia-imex opensm gdrtop nvbandwidth perftest ibstat ibstatus ibv_devinfo ibv_devices
    rdma show_gids ibdev2netdev ethtool lspci setpci mlxconfig mlxlink mlxreg mst flint mlnx_qos ofed_info
    dkms mokutil rdma_topo modinfo modprobe lsmod insmod rmmod dmesg journalctl systemctl dpkg-query rpm ip
    ss findmnt kubectl oc scontrol squeue ucx_info ucx_perftest fi_info gdrcopy_sanity gdrcopy_copybw
    gdrcopy_copylat p2pbandwidthlatencytest nvidia-bug-report.sh dcgmproftester12 cuda_attributes htop top
    btop dcb
"""
PROGRAMS = frozenset(_PROGRAMS.split()) | frozenset(TOOLS)

_SYMBOLS = """
    ib_register_peer_memory_client ib_unregister_peer_memory_client ib_register_client
    ib_uverbs_get_ucontext_file nvidia_p2p_get_pages nvUvmInterfaceRegisterUvmCallbacks
    mlx5_core_create_mkey rdma_nl_register
"""
SYMBOLS = frozenset(_SYMBOLS.split())
"""Symbols of kernel modules whose providers matter."""

_VARIABLES = """
    CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES FI_EFA_FORK_SAFE FI_EFA_SET_CUDA_SYNC_MEMOPS
    FI_EFA_USE_DEVICE_RDMA FI_EFA_USE_HUGE_PAGE FI_HMEM FI_LOG_LEVEL FI_PROVIDER NCCL_ALGO NCCL_ALL
    NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE NCCL_CHECKS_DISABLE
    NCCL_CHECK_MODE NCCL_CHECK_POINTERS NCCL_COLLNET NCCL_COLLNET_ENABLE NCCL_COMM_ID NCCL_CONF
    NCCL_CONF_FILE NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS
    NCCL_DEBUG_TIMESTAMP_FORMAT NCCL_DEBUG_TIMESTAMP_LEVELS NCCL_DESTROY NCCL_DMABUF_ENABLE
    NCCL_DYNAMIC_MEMORY NCCL_ENV NCCL_ENV_PLUGIN NCCL_FASTSOCKET_ENABLE NCCL_GIN_PLUGIN NCCL_GRAPH
    NCCL_GRAPH_DUMP_FILE NCCL_GRAPH_FILE NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER NCCL_HOME NCCL_HOSTID
    NCCL_IBVERBS_LIB NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE NCCL_IB_AR_THRESHOLD
    NCCL_IB_CUDA_SUPPORT NCCL_IB_DATA_DIRECT NCCL_IB_DISABLE NCCL_IB_ECN NCCL_IB_GDR_LEVEL NCCL_IB_GID_INDEX
    NCCL_IB_HCA NCCL_IB_MERGE_NICS NCCL_IB_MERGE_VFS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_PKEY
    NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SL
    NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IGNORE_CPU_AFFINITY NCCL_INIT
    NCCL_INSPECTOR_DUMP_DIR NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS NCCL_INSPECTOR_ENABLE
    NCCL_INSPECTOR_PROM_DUMP NCCL_LAUNCH_MODE NCCL_LOCAL_REGISTER NCCL_LOG_VERSION NCCL_MAJOR NCCL_MAX_CTAS
    NCCL_MAX_NCHANNELS NCCL_MINOR NCCL_MIN_CHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_MNNVL_ENABLE
    NCCL_MULTI_RANK_GPU_ENABLE NCCL_NET NCCL_NETDEVS_POLICY NCCL_NET_FORCE_FLUSH NCCL_NET_GDR_C2C
    NCCL_NET_GDR_LEVEL NCCL_NET_GDR_MLOPART NCCL_NET_GDR_READ NCCL_NET_MERGE_POLICY NCCL_NET_PLUGIN
    NCCL_NET_SHARED_BUFFERS NCCL_NET_SHARED_COMMS NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE
    NCCL_NVLS NCCL_NVLSTREE_MAX_CHUNKSIZE NCCL_NVLS_CHUNKSIZE NCCL_NVLS_ENABLE NCCL_OOB_NET_ENABLE
    NCCL_P2P_DIRECT_DISABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_P2P_NET_CHUNKSIZE NCCL_P2P_PXN_LEVEL
    NCCL_PARAM NCCL_PATCH NCCL_PROFILE NCCL_PROFILER_PLUGIN NCCL_PROGRESS_COUNTERS NCCL_PROTO
    NCCL_PXN_DISABLE NCCL_RAS NCCL_RAS_ADDR NCCL_RAS_ENABLE NCCL_RAS_TIMEOUT_FACTOR NCCL_RMA_PLUGIN
    NCCL_ROOT NCCL_RUNTIME_CONNECT NCCL_SET_STACK_SIZE NCCL_SHM_DISABLE NCCL_SINGLE_RING_THRESHOLD
    NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_SUFFIX NCCL_TESTS NCCL_THREAD_THRESHOLDS
    NCCL_TOPO_DUMP_FILE NCCL_TOPO_DUMP_FILE_RANK NCCL_TOPO_FILE NCCL_TOPO_XML_VERSION NCCL_TUNER_PLUGIN
    NCCL_TUNING NCCL_VARIABLES NCCL_VERSION NCCL_WORK_FIFO_DEPTH NVIDIA_VISIBLE_DEVICES NVSHMEM_BOOTSTRAP
    NVSHMEM_DEBUG NVSHMEM_DISABLE_DATA_DIRECT NVSHMEM_DISABLE_P2P NVSHMEM_ENABLE_NIC_PE_MAPPING
    NVSHMEM_HCA_LIST NVSHMEM_HCA_PE_MAPPING NVSHMEM_HCA_PREFIX NVSHMEM_IBGDA_NIC_HANDLER
    NVSHMEM_IB_DISABLE_DMABUF NVSHMEM_IB_ENABLE_IBGDA NVSHMEM_IB_GID_INDEX NVSHMEM_IB_TRAFFIC_CLASS
    NVSHMEM_LIBFABRIC_PROVIDER NVSHMEM_REMOTE_TRANSPORT NVSHMEM_SYMMETRIC_SIZE UCX_CUDA_COPY_DMABUF
    UCX_IB_ALLOC UCX_IB_GID_INDEX UCX_IB_GPU_DIRECT_RDMA UCX_IB_PCI_RELAXED_ORDERING UCX_IB_SL
    UCX_IB_TRAFFIC_CLASS UCX_LOG_FILE UCX_LOG_LEVEL UCX_MAX_RNDV_RAILS UCX_MEMTYPE_CACHE UCX_MODULE_DIR
    UCX_NET_DEVICES UCX_RNDV_SCHEME UCX_RNDV_THRESH UCX_TCP_CM_REUSEADDR UCX_TLS UCX_WARN_UNUSED_ENV_VARS
"""
VARIABLES = frozenset(_VARIABLES.split())
"""Variables of NCCL, UCX, libfabric and NVSHMEM; other names are made up by users."""

VOCABULARY = (
    frozenset(
        word.lower()
        for words in (_PATHS, _SETUP, _MODULES, _SERVICES, _PRODUCTS, _SYSTEMS, _KERNEL, _SETTINGS)
        for word in words.split()
    )
    | frozenset(
        word.lower()
        for words in (SYMBOLS, VARIABLES, PROGRAMS, TOOLS, SERVICES, CORE_LADDER, COMPANIONS)
        for word in words
    )
    | {f"{service}.service" for service in SERVICES}
    | {
        f"{module.replace('_', dash)}{suffix}"
        for module in _MODULES.split()
        for dash in ("_", "-")
        for suffix in ("", ".ko", ".ko.gz", ".ko.xz", ".ko.zst")
    }
)

OWN_WORDS = frozenset(_SENTENCES.split())

# Forms whose values identify nothing: numbered devices, versions, quantities.
_FORMS = re.compile(
    "|".join(
        (
            r"(?:mlx[45]|bnxt_re|irdma|efa|erdma|hfi1|qedr|rxe|siw|mana|ionic|hns|cxi|usnic|ocrdma|cxgb4)_?\d{1,3}",
            r"mlx5_bond_\d{1,2}|802\.3ad",
            r"(?:ib|roce|iw|opa|rdma)(?:P\d{1,5})?p\d{1,3}s\d{1,3}(?:f\d{1,2})?(?:v\d{1,3})?",
            r"(?:en|ib|wl|ww)(?:P\d{1,5})?(?:p\d{1,3})?s\d{1,4}(?:f\d{1,2})?(?:np\d{1,2})?(?:d\d{1,2})?(?:v\d{1,3})?"
            r"(?:\.\d{1,4})?",
            r"(?:eno|eth|hsn|ib|bond|br|docker|veth|team|vlan|rdma|wlan|tun|tap|virbr|gpu\d{1,2}rdma|en)\d{1,4}"
            r"(?:np\d{1,2})?(?:\.[0-9a-f]{1,4})?",
            r"(?:node|cpu|uverbs|umad|issm|nvidia|dmar|ivhd|card|renderD|ptp|hwmon|nvme|loop|sd[a-z]|dm-|md)\d{0,4}",
            r"(?:nvidia-(?:nvswitch|cap)|mei|kmsg|smmu3\.0x|nvme\d{1,3}n)\d{1,4}(?:p\d{1,3})?",
            r"pci[0-9a-f]{4,8}|channel\d{1,5}",
            # Debian's names of the driver's files
            r"nvidia[-_](?:current|tesla(?:[-_]\d{3})?)(?:[-_]open)?(?:[-_](?:uvm|modeset|drm|peermem))?"
            r"(?:\.ko(?:\.(?:gz|xz|zst))?)?|-[ir]|--ignore-install|CMDLINE_OPTS",
            r"resource\d(?:_wc)?",
            r"MT\d{3,5}",
            r"[ABHLTVPKM]\d{1,4}[A-Z]{0,2}|G[BHA]\d{2,3}[A-Z]?",
            r"\d{1,7}(?:\.\d{1,4})?(?:[kKMGTP]i?[Bb]?|[KMGT]T?|GT|Gb|W|[kMG]?Hz|m?s|us|ns|[xXCB]|bit|st|nd|rd|th)",
            r"x\d{1,2}|SP\d|\d{1,3}(?:\.\d{1,4}){2}g",  # SUSE's service packs; versions of AWS's efa
            r"el\d{1,2}(?:_\d{1,2})?|fc\d{2}|amzn\d{1,4}|sles\d{1,2}|deb\d{1,2}u?\d?|ubuntu\d(?:\.\d{1,2})*|p\d|rc\d{1,2}",
            r"cu\d{2,3}|python\d(?:\.\d{1,2})?",
            r"nvidia_nccl_cu\d{1,3}-[0-9.]{1,30}\.dist-info",
            r"lib(?:nccl(?:-net|-tuner)?(?:-(?:aws|ofi|sharp|ucx|spectrum))?|ibverbs|mlx[45]|cuda|cudart|ucp|uct|ucs|fabric"
            r"|nvshmem_host|gdrapi|nvidia-ml|efa|rdmacm)\.so(?:\.\d{1,6}){0,5}",
            r"nvshmem_transport_ibgda\.so(?:\.\d{1,6}){0,5}",
            r"mooncake|engine\.so",  # of the wheel of Mooncake's transfer engine
            r"lib(?:mlx[45]|efa|irdma|bnxt_re|cxgb4|erdma|hns|ocrdma|qedr|mana)-rdmav\d{1,3}\.so",
            r"[-+_.%@]{1,4}",
            r"(?:MLNX_OFED_LINUX|MLNX_EN|OFED-internal|DOCA_OFED|doca-ofed)-\d{1,3}(?:[.-]\d{1,5}){1,8}",
            r"smmu\d{1,3}",
            r"mlx5_core\.(?:rdma|eth|sf|vnet)\.\d{1,4}",
            r"(?:kernel|config|vmlinu[xz]|Image|initrd(?:\.img)?|initramfs|linux-modules)-\d{1,3}(?:\.\d{1,8})+(?:[-_.](?:\d{1,8}|el\d{1,2}(?:_\d{1,2})?|generic|nvidia|azure|aws|gcp|64kb?|x86_64"
            r"|aarch64|uek|oracle|amzn\d{1,4}|default))*(?:\.img)?",
            # NVIDIA's operators and NIC driver, and packages of the driver: their branch is part of the name.
            r"(?:gpu-operator-)?v\d{2}\.\d{1,2}\.\d{1,2}|doca\d(?:[.-]\d{1,4}){3,9}",
            r"nvidia-(?:utils|driver|dkms|kernel-source|compute-utils)-\d{3}(?:-(?:server|open))*",
            # Machine types of Amazon EC2.
            r"(?:p|g)\d[a-z]{0,3}(?:-[a-z]+\d{3})?\.(?:metal|\d{0,2}xlarge)(?:-\d{1,2}xl)?",
            r"\d{1,6}(?:-\d{1,6})+",
        )
    )
)
_PART = re.compile(r"[-_.+~]")
VERSION = re.compile(r"v?\d{1,8}(?:\.\d{1,8})+")
_OCTET = r"(?:25[0-5]|2[0-4]\d|[01]?\d?\d)"
IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\d)")
_SUFFIXES = (
    ".conf",
    ".service",
    ".target",
    ".socket",
    ".timer",
    ".mount",
    ".slice",
    ".scope",
    ".wants",
    ".requires",
    ".d",
    ".rules",
    ".ko",
    ".ko.gz",
    ".ko.xz",
    ".ko.zst",
    ".so",
    ".xml",
    ".log",
)


@lru_cache(maxsize=8192)
def is_known(word: str) -> bool:
    """Return whether a word does not identify anyone."""
    return word.lower() in VOCABULARY or _FORMS.fullmatch(word) is not None or _is_version(word)


def _is_version(word: str) -> bool:
    match = VERSION.match(word)
    if match is None or IPV4.match(word):
        return False
    rest = word[match.end() :]
    return not rest or (
        rest[0] in "-_.+~"
        and all(
            not part
            or (part.isdecimal() and len(part) < 9)
            or part.lower() in VOCABULARY
            or _FORMS.fullmatch(part) is not None
            for part in _PART.split(rest)
        )
    )


def known_suffix(word: str) -> str:
    """Return the suffix of a file name; "" if it is unknown."""
    return next((suffix for suffix in _SUFFIXES if word.endswith(suffix)), "")

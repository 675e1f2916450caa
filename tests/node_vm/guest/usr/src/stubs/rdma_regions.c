// SPDX-License-Identifier: GPL-2.0
/*
 * RDMA devices regions0, regions1 that move no data: they register memory, and their queue pairs are
 * always connected. Registration is ib_core's own (ib_umem_get, ib_umem_dmabuf_get and the resource
 * tracker), so that netlink and VmPin say what they say with a real NIC.
 *
 *   keep_length  0: DMA-BUF regions get no length, as with some drivers
 *   pinned       0: DMA-BUFs are attached movable, as mlx5 does with on-demand paging
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_umem_odp.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

extern struct miscdevice dmabuf_exporter; /* dmabuf_exporter.c */

#define DEVICES 2

static bool keep_length = true;
module_param(keep_length, bool, 0644);
static bool pinned = true;
module_param(pinned, bool, 0644);

struct regions_device {
	struct ib_device ib;
	struct platform_device *parent;
	atomic_t next_key;
	atomic_t next_queue_pair;
};

struct regions_context {
	struct ib_ucontext ib;
};

struct regions_pd {
	struct ib_pd ib;
};

struct regions_qp {
	struct ib_qp ib;
};

struct regions_cq {
	struct ib_cq ib;
	struct ib_umem *ring;
};

struct regions_mr {
	struct ib_mr ib;
	struct ib_umem *memory;
};

static struct regions_device *devices[DEVICES];

/* The device and its port */

static int query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	attr->max_mr_size = U64_MAX;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_mr = 1 << 16;
	attr->max_pd = 1 << 10;
	attr->max_cq = 1 << 10;
	attr->max_cqe = 1 << 16;
	attr->max_qp = 1 << 10;
	attr->max_qp_wr = 1 << 10;
	attr->kernel_cap_flags = IBK_ON_DEMAND_PAGING;
	return 0;
}

static int query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	attr->state = IB_PORT_ACTIVE;
	attr->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = 1;
	attr->pkey_tbl_len = 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	attr->max_vl_num = 1;
	return 0;
}

static int get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = 1;
	immutable->pkey_tbl_len = 1;
	return 0; /* no capability: no management datagrams, no connection manager */
}

static enum rdma_link_layer get_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[0] = 0xfe;
	gid->raw[1] = 0x80;
	gid->raw[15] = 1;
	return 0;
}

static int query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return 0;
}

/* Contexts and protection domains have nothing of the device's own. */

static int alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata)
{
	return 0;
}

static void dealloc_ucontext(struct ib_ucontext *context)
{
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int refuse_mmap(struct ib_ucontext *context, struct vm_area_struct *area)
{
	return -EINVAL;
}

/* Memory regions */

static struct ib_mr *new_mr(struct ib_pd *pd, struct ib_umem *memory, u64 length)
{
	struct regions_device *device = container_of(pd->device, struct regions_device, ib);
	struct regions_mr *mr;

	if (IS_ERR(memory))
		return ERR_CAST(memory);
	mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	if (!mr) {
		ib_umem_release(memory);
		return ERR_PTR(-ENOMEM);
	}
	mr->memory = memory;
	mr->ib.lkey = mr->ib.rkey = (u32)atomic_inc_return(&device->next_key) << 8;
	if (keep_length)
		mr->ib.length = length;
	return &mr->ib;
}

/* On-demand paging: no page is mapped before a transfer, and there is none. */
static bool invalidate(struct mmu_interval_notifier *notifier, const struct mmu_notifier_range *range,
		       unsigned long sequence)
{
	mmu_interval_set_seq(notifier, sequence);
	return true;
}

static const struct mmu_interval_notifier_ops notifier_operations = { .invalidate = invalidate };

static struct ib_mr *reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address, int access,
				 struct ib_udata *udata)
{
	struct ib_umem_odp *paged;

	if (!(access & IB_ACCESS_ON_DEMAND))
		return new_mr(pd, ib_umem_get(pd->device, start, length, access), length);
	paged = ib_umem_odp_get(pd->device, start, length, access, &notifier_operations);
	return new_mr(pd, IS_ERR(paged) ? ERR_CAST(paged) : &paged->umem, length);
}

/* The exporter moves the buffer: the mapping goes. */
static void move_notify(struct dma_buf_attachment *attachment)
{
	ib_umem_dmabuf_unmap_pages(attachment->importer_priv);
}

static const struct dma_buf_attach_ops movable_operations = {
	.allow_peer2peer = true,
	.move_notify = move_notify,
};

static struct ib_umem_dmabuf *attach_movable(struct ib_device *ib, u64 offset, u64 length, int fd, int access)
{
	struct ib_umem_dmabuf *memory = ib_umem_dmabuf_get(ib, offset, length, fd, access, &movable_operations);
	int error;

	if (IS_ERR(memory))
		return memory;
	dma_resv_lock(memory->attach->dmabuf->resv, NULL);
	error = ib_umem_dmabuf_map_pages(memory);
	dma_resv_unlock(memory->attach->dmabuf->resv);
	if (!error)
		return memory;
	ib_umem_release(&memory->umem);
	return ERR_PTR(error);
}

static struct ib_mr *reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 address, int fd,
					int access, struct ib_udata *udata)
{
	struct ib_umem_dmabuf *memory;

	if (pinned)
		memory = ib_umem_dmabuf_get_pinned(pd->device, offset, length, fd, access);
	else
		memory = attach_movable(pd->device, offset, length, fd, access);
	return new_mr(pd, IS_ERR(memory) ? ERR_CAST(memory) : &memory->umem, length);
}

static int dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct regions_mr *mr = container_of(ib, struct regions_mr, ib);

	ib_umem_release(mr->memory);
	kfree(mr);
	return 0;
}

/*
 * Completion queues: with address and length of a ring in the command's private part, the ring is pinned
 * as a real NIC's is: charged to VmPin, but no memory region.
 */
struct ring_of_user {
	__aligned_u64 address;
	__aligned_u64 length;
};

static int create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr, struct ib_udata *udata)
{
	struct regions_cq *cq = container_of(ib, struct regions_cq, ib);
	struct ring_of_user ring;
	int error;

	ib->cqe = attr->cqe;
	cq->ring = NULL;
	if (!udata || udata->inlen < sizeof(ring))
		return 0;
	error = ib_copy_from_udata(&ring, udata, sizeof(ring));
	if (error)
		return error;
	cq->ring = ib_umem_get(ib->device, ring.address, ring.length, IB_ACCESS_LOCAL_WRITE);
	return PTR_ERR_OR_ZERO(cq->ring);
}

static int destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	ib_umem_release(container_of(ib, struct regions_cq, ib)->ring);
	return 0;
}

/* Queue pairs: connected from the start, to nobody. */

static int create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct regions_device *device = container_of(ib->device, struct regions_device, ib);

	ib->qp_num = atomic_inc_return(&device->next_queue_pair);
	return 0;
}

static int modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	return 0;
}

static int query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	attr->qp_state = attr->cur_qp_state = IB_QPS_RTS;
	attr->port_num = 1;
	return 0;
}

static int destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	return 0;
}

static const struct ib_device_ops operations = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = 1,

	.query_device = query_device,
	.query_port = query_port,
	.get_port_immutable = get_port_immutable,
	.get_link_layer = get_link_layer,
	.query_gid = query_gid,
	.query_pkey = query_pkey,
	.alloc_ucontext = alloc_ucontext,
	.dealloc_ucontext = dealloc_ucontext,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.mmap = refuse_mmap,
	.reg_user_mr = reg_user_mr,
	.reg_user_mr_dmabuf = reg_user_mr_dmabuf,
	.dereg_mr = dereg_mr,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.query_qp = query_qp,
	.destroy_qp = destroy_qp,

	INIT_RDMA_OBJ_SIZE(ib_ucontext, regions_context, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, regions_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, regions_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, regions_qp, ib),
};

static struct regions_device *add_device(int number)
{
	struct platform_device_info info = {
		.name = "regions",
		.id = number,
		.dma_mask = DMA_BIT_MASK(64),
	};
	struct regions_device *device = ib_alloc_device(regions_device, ib);
	int error;

	if (!device)
		return ERR_PTR(-ENOMEM);
	device->parent = platform_device_register_full(&info);
	if (IS_ERR(device->parent)) {
		error = PTR_ERR(device->parent);
		goto free;
	}
	device->ib.node_type = RDMA_NODE_IB_CA;
	device->ib.phys_port_cnt = 1;
	device->ib.num_comp_vectors = 1;
	device->ib.dev.parent = &device->parent->dev;
	device->ib.node_guid = cpu_to_be64(0x7265670000000000ULL + number);
	ib_set_device_ops(&device->ib, &operations);
	error = ib_register_device(&device->ib, "regions%d", &device->parent->dev);
	if (!error)
		return device;
	platform_device_unregister(device->parent);
free:
	ib_dealloc_device(&device->ib);
	return ERR_PTR(error);
}

static void remove_devices(void)
{
	int i;

	for (i = 0; i < DEVICES; i++) {
		struct platform_device *parent;

		if (!devices[i])
			continue;
		parent = devices[i]->parent;
		ib_unregister_device(&devices[i]->ib);
		ib_dealloc_device(&devices[i]->ib);
		platform_device_unregister(parent);
	}
	misc_deregister(&dmabuf_exporter);
}

static int __init stub_init(void)
{
	int i, error = misc_register(&dmabuf_exporter);

	if (error)
		return error;
	for (i = 0; i < DEVICES; i++) {
		struct regions_device *device = add_device(i);

		if (IS_ERR(device)) {
			remove_devices();
			return PTR_ERR(device);
		}
		devices[i] = device;
	}
	return 0;
}

module_init(stub_init);
module_exit(remove_devices);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("node_vm stub of an RDMA device that only registers memory");
MODULE_IMPORT_NS(DMA_BUF);

// SPDX-License-Identifier: GPL-2.0
/*
 * Hangs a software device below a PCI function, where a real NIC's would be:
 *
 *   echo "mlx5_0 0000:45:00.0" > /sys/module/pretend/parameters/rdma_parent      an RDMA device
 *   echo "ens0np0 0000:45:00.0" > /sys/module/pretend/parameters/netdev_parent   a network interface
 */
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>

static char wanted_name[64];
static struct pci_dev *new_parent;
static int result;

static int parse(const char *text)
{
	unsigned int domain, bus, device, function;

	if (sscanf(text, "%63s %x:%x:%x.%x", wanted_name, &domain, &bus, &device, &function) != 5)
		return -EINVAL;
	/* The reference is kept: the child's parent must not go before it. */
	new_parent = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(device, function));
	return new_parent ? 0 : -ENODEV;
}

static int move(struct device *device)
{
	return device_move(device, &new_parent->dev, DPM_ORDER_DEV_AFTER_PARENT);
}

static int device_seen(struct ib_device *device)
{
	if (!strcmp(dev_name(&device->dev), wanted_name))
		result = move(&device->dev);
	return -EOPNOTSUPP; /* no client of this device */
}

/* Registering a client is the way to meet every RDMA device. */
static struct ib_client visitor = { .name = "pretend", .add = device_seen };

static int rdma_parent_set(const char *text, const struct kernel_param *parameter)
{
	int error = parse(text);

	if (error)
		return error;
	result = -ENOENT;
	error = ib_register_client(&visitor);
	if (error)
		return error;
	ib_unregister_client(&visitor);
	return result;
}

static int netdev_parent_set(const char *text, const struct kernel_param *parameter)
{
	struct net_device *netdev;
	int error = parse(text);

	if (error)
		return error;
	netdev = dev_get_by_name(&init_net, wanted_name);
	if (!netdev)
		return -ENOENT;
	error = move(&netdev->dev);
	dev_put(netdev);
	return error;
}

static const struct kernel_param_ops rdma_parent_operations = { .set = rdma_parent_set };
module_param_cb(rdma_parent, &rdma_parent_operations, NULL, 0200);

static const struct kernel_param_ops netdev_parent_operations = { .set = netdev_parent_set };
module_param_cb(netdev_parent, &netdev_parent_operations, NULL, 0200);

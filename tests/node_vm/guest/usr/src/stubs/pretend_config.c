// SPDX-License-Identifier: GPL-2.0
/*
 * Gives PCI functions other ids, links and an ACS capability than QEMU gave them: reads of config space go
 * through here. After a remove and a rescan the kernel enumerates the function anew, so that sysfs, lspci
 * and driver binding agree.
 *
 *   echo "BDF VENDOR:DEVICE:CLASS[:SUBSYSTEM] MAX_GEN MAX_WIDTH GEN WIDTH ACS" > /sys/module/pretend/parameters/function
 *
 * Ids are hex; CLASS has six digits; SUBSYSTEM is device << 16 | vendor; generation and width are decimal,
 * 0 leaves QEMU's; ACS is the capability's bits in hex, 0 for none, and its control register can be written.
 */
#include <linux/module.h>
#include <linux/pci.h>

#define MOST_FUNCTIONS 96
/* QEMU's xio3130-downstream has AER at 0x100 and nothing behind it: the list goes on at 0x148. */
#define AER_HEADER 0x100
#define ACS_HEADER 0x148
#define ACS_REGISTERS (ACS_HEADER + 4)
#define NEXT_SHIFT 20

struct pretended {
	struct pci_bus *bus;
	unsigned int devfn;
	u32 ids;       /* register 0x00; 0: QEMU's */
	u32 class;     /* 24 bits */
	u32 subsystem; /* register 0x2c */
	unsigned int max_generation, max_width, generation, width;
	int express;   /* offset of the PCI Express capability */
	u16 acs;
	u16 acs_control;
};

/* The operations of a bus on which something is pretended. */
struct changed_bus {
	struct pci_bus *bus;
	struct pci_ops operations;
	struct pci_ops *original;
};

static struct pretended functions[MOST_FUNCTIONS];
static int function_count;
static struct changed_bus buses[MOST_FUNCTIONS];
static int bus_count;

static struct changed_bus *find_bus(struct pci_bus *bus)
{
	int i;

	for (i = 0; i < bus_count; i++)
		if (buses[i].bus == bus)
			return &buses[i];
	return NULL;
}

static struct pretended *find_function(struct pci_bus *bus, unsigned int devfn)
{
	int i;

	for (i = 0; i < function_count; i++)
		if (functions[i].bus == bus && functions[i].devfn == devfn)
			return &functions[i];
	return NULL;
}

/* One aligned register as pretended, from what QEMU has there. */
static u32 pretended_register(const struct pretended *one, int where, u32 value)
{
	if (where == PCI_VENDOR_ID && one->ids)
		return one->ids;
	if (where == PCI_CLASS_REVISION && one->class)
		return (value & 0xff) | (one->class << 8);
	if (where == PCI_SUBSYSTEM_VENDOR_ID && one->subsystem)
		return one->subsystem;
	if (one->express && one->max_generation) {
		if (where == one->express + PCI_EXP_LNKCAP)
			return (value & ~(PCI_EXP_LNKCAP_SLS | PCI_EXP_LNKCAP_MLW)) |
			       one->max_generation | (one->max_width << 4);
		if (where == one->express + PCI_EXP_LNKCTL) /* the status is its upper half */
			return (value & 0xfc00ffff) | (one->generation << 16) | (one->width << 20);
		if (where == one->express + PCI_EXP_LNKCAP2)
			return (value & ~0xffu) | (((1u << one->max_generation) - 1) << 1);
	}
	if (one->acs) {
		if (where == AER_HEADER)
			return (value & ((1u << NEXT_SHIFT) - 1)) | ((u32)ACS_HEADER << NEXT_SHIFT);
		if (where == ACS_HEADER)
			return PCI_EXT_CAP_ID_ACS | (1 << 16);
		if (where == ACS_REGISTERS)
			return one->acs | ((u32)one->acs_control << 16);
	}
	return value;
}

static int pretend_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct pci_ops *original = find_bus(bus)->original;
	struct pretended *one = find_function(bus, devfn);
	int aligned = where & ~3;
	u32 whole;
	int error;

	if (!one)
		return original->read(bus, devfn, where, size, value);
	error = original->read(bus, devfn, aligned, 4, &whole);
	if (error)
		return error;
	whole = pretended_register(one, aligned, whole) >> (8 * (where & 3));
	*value = size == 4 ? whole : whole & ((1u << (8 * size)) - 1);
	return 0;
}

static int pretend_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	struct pretended *one = find_function(bus, devfn);

	if (!one || !one->acs || (where & ~3) != ACS_REGISTERS)
		return find_bus(bus)->original->write(bus, devfn, where, size, value);
	if (where == ACS_REGISTERS + 2 && size == 2)
		one->acs_control = value & one->acs;
	else if (where == ACS_REGISTERS && size == 4)
		one->acs_control = (value >> 16) & one->acs;
	return 0;
}

static void change_bus(struct pci_bus *bus)
{
	struct changed_bus *changed = &buses[bus_count];

	if (find_bus(bus))
		return;
	changed->bus = bus;
	changed->original = bus->ops;
	changed->operations = *bus->ops;
	changed->operations.read = pretend_read;
	changed->operations.write = pretend_write;
	bus_count++; /* before anybody reads through it */
	pci_bus_set_ops(bus, &changed->operations);
}

static int function_set(const char *text, const struct kernel_param *parameter)
{
	unsigned int domain, number, device, function, vendor, id, class, subsystem = 0, acs = 0;
	struct pretended *one = &functions[function_count];
	struct pci_dev *found;
	char ids[40];

	if (function_count == MOST_FUNCTIONS)
		return -ENOSPC;
	memset(one, 0, sizeof(*one));
	if (sscanf(text, "%x:%x:%x.%x %39s %u %u %u %u %x", &domain, &number, &device, &function, ids,
		   &one->max_generation, &one->max_width, &one->generation, &one->width, &acs) != 10)
		return -EINVAL;
	if (sscanf(ids, "%x:%x:%x:%x", &vendor, &id, &class, &subsystem) < 3)
		return -EINVAL;
	found = pci_get_domain_bus_and_slot(domain, number, PCI_DEVFN(device, function));
	if (!found)
		return -ENODEV;
	one->bus = found->bus;
	one->devfn = found->devfn;
	one->ids = id << 16 | vendor;
	one->class = class;
	one->subsystem = subsystem;
	one->acs = acs;
	one->express = pci_find_capability(found, PCI_CAP_ID_EXP);
	function_count++;
	change_bus(found->bus);
	pci_dev_put(found);
	return 0;
}

static const struct kernel_param_ops function_operations = { .set = function_set };
module_param_cb(function, &function_operations, NULL, 0200);

static int __init pretend_init(void)
{
	__module_get(THIS_MODULE); /* the buses read through it: it can never go */
	return 0;
}

module_init(pretend_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("node_vm: pretended PCI functions and parents of RDMA devices");

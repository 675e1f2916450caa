// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Stands for the NVIDIA driver: its name, its PCI binding, its device nodes, what it shows in
 * /proc/driver/nvidia, and the symbols that the other modules need. It does nothing else.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#define DRIVER_VERSION "550.90.07"

struct gpu {
	struct miscdevice node;
	char name[16];
	struct proc_dir_entry *directory;
	int minor;
};

static struct proc_dir_entry *driver_directory;
static struct proc_dir_entry *gpus_directory;
static int gpu_count;

/* An open device node holds the module, as with the real driver. */
static const struct file_operations device_operations = { .owner = THIS_MODULE };

static struct miscdevice control_node = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidiactl",
	.fops = &device_operations,
	.mode = 0666,
};

int nvidia_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, void **pages,
			 void (*freed)(void *), void *context)
{
	return -EINVAL;
}
EXPORT_SYMBOL(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, void *pages)
{
	return 0;
}
EXPORT_SYMBOL(nvidia_p2p_put_pages);

int nvUvmInterfaceRegisterUvmCallbacks(void *operations)
{
	return 0;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmCallbacks);

/* The layout of these two files is the real driver's: programs read them. */
static int information_show(struct seq_file *file, void *unused)
{
	struct pci_dev *device = file->private;
	struct gpu *gpu = pci_get_drvdata(device);

	seq_printf(file, "Model: \t\t node_vm stub GPU\n");
	seq_printf(file, "IRQ:   \t\t %u\n", device->irq);
	seq_printf(file, "GPU UUID: \t GPU-%08x-0000-0000-0000-000000000000\n", 0xa0000000u + gpu->minor);
	seq_printf(file, "Video BIOS: \t 00.00.00.00.00\n");
	seq_printf(file, "Bus Type: \t PCIe\n");
	seq_printf(file, "Bus Location: \t %s\n", pci_name(device));
	seq_printf(file, "Device Minor: \t %d\n", gpu->minor);
	seq_printf(file, "GPU Excluded:\t No\n");
	return 0;
}

static int version_show(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " DRIVER_VERSION
		       "  Release Build  (node_vm stub)\n");
	seq_puts(file, "GCC version:  node_vm\n");
	return 0;
}

static int gpu_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	struct gpu *gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	int error;

	if (!gpu)
		return -ENOMEM;
	gpu->minor = gpu_count;
	snprintf(gpu->name, sizeof(gpu->name), "nvidia%d", gpu->minor);
	gpu->node = (struct miscdevice){
		.minor = MISC_DYNAMIC_MINOR,
		.name = gpu->name,
		.fops = &device_operations,
		.mode = 0666,
	};
	error = misc_register(&gpu->node);
	if (error) {
		kfree(gpu);
		return error;
	}
	gpu_count++;
	pci_set_drvdata(device, gpu);
	gpu->directory = proc_mkdir(pci_name(device), gpus_directory);
	proc_create_single_data("information", 0444, gpu->directory, information_show, device);
	dev_info(&device->dev, "node_vm: pretended GPU taken as %s\n", gpu->name);
	return 0;
}

static void gpu_remove(struct pci_dev *device)
{
	struct gpu *gpu = pci_get_drvdata(device);

	misc_deregister(&gpu->node);
	proc_remove(gpu->directory);
	kfree(gpu);
}

static const struct pci_device_id gpu_ids[] = {
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030000, .class_mask = 0xffff00 },
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030200, .class_mask = 0xffff00 },
	{}
};
MODULE_DEVICE_TABLE(pci, gpu_ids);

static struct pci_driver driver = {
	.name = "nvidia",
	.id_table = gpu_ids,
	.probe = gpu_probe,
	.remove = gpu_remove,
};

static int __init stub_init(void)
{
	int error;

	driver_directory = proc_mkdir("driver/nvidia", NULL);
	gpus_directory = proc_mkdir("gpus", driver_directory);
	proc_create_single_data("version", 0444, driver_directory, version_show, NULL);
	error = misc_register(&control_node);
	if (error)
		goto no_control;
	error = pci_register_driver(&driver);
	if (error)
		goto no_driver;
	if (gpu_count == 0) { /* like the real one: no GPU, no driver */
		error = -ENODEV;
		pci_unregister_driver(&driver);
		goto no_driver;
	}
	return 0;

no_driver:
	misc_deregister(&control_node);
no_control:
	proc_remove(driver_directory);
	return error;
}

static void __exit stub_exit(void)
{
	pci_unregister_driver(&driver);
	misc_deregister(&control_node);
	proc_remove(driver_directory);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(DRIVER_VERSION);
MODULE_DESCRIPTION("node_vm stub of the NVIDIA driver");

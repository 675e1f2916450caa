// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Stands for nvidia_uvm: needs a symbol of nvidia, and has a device node that can be held open. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

int nvUvmInterfaceRegisterUvmCallbacks(void *operations);

static const struct file_operations device_operations = { .owner = THIS_MODULE };

static struct miscdevice node = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "nvidia-uvm",
	.fops = &device_operations,
	.mode = 0666,
};

static int __init stub_init(void)
{
	nvUvmInterfaceRegisterUvmCallbacks(NULL);
	return misc_register(&node);
}

static void __exit stub_exit(void)
{
	misc_deregister(&node);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("550.90.07");
MODULE_DESCRIPTION("node_vm stub of nvidia-uvm");

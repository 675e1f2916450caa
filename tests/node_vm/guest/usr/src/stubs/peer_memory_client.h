/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/*
 * The body that nvidia-peermem and nv_peer_mem share: both register as "nv_mem", so only one can be loaded.
 * The including file defines CLIENT_NAME and CLIENT_VERSION.
 *
 *   echo 3 > /sys/module/nvidia_peermem/parameters/hold    takes or gives back references until 3 are held,
 *                                                           as registered memory regions do
 *   modprobe nvidia_peermem fail=22                         fails with that errno, silently, as the real
 *                                                           module does if built without the symbols
 */
#include <linux/module.h>
#include <rdma/ib_verbs.h>

int nvidia_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, void **pages,
			 void (*freed)(void *), void *context);
int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, void *pages);
void *ib_register_peer_memory_client(const char *name, const char *version);
void ib_unregister_peer_memory_client(void *handle);

static void *registration;
static int held;

static int hold_set(const char *text, const struct kernel_param *parameter)
{
	int wanted;
	int error = kstrtoint(text, 0, &wanted);

	if (error || wanted < 0 || wanted > 1000)
		return -EINVAL;
	for (; held < wanted; held++)
		if (!try_module_get(THIS_MODULE))
			return -ENODEV;
	for (; held > wanted; held--)
		module_put(THIS_MODULE);
	return 0;
}

static const struct kernel_param_ops hold_operations = { .set = hold_set, .get = param_get_int };
module_param_cb(hold, &hold_operations, &held, 0644);

static int fail;
module_param(fail, int, 0444);

/* Only there so that the module needs ib_core. */
static int device_added(struct ib_device *device)
{
	return -EOPNOTSUPP;
}

static struct ib_client client = { .name = CLIENT_NAME, .add = device_added };

static int __init stub_init(void)
{
	int error;

	if (fail)
		return -fail;
	nvidia_p2p_put_pages(0, 0, 0, NULL);
	registration = ib_register_peer_memory_client("nv_mem", CLIENT_VERSION);
	if (!registration)
		return -EINVAL;
	error = ib_register_client(&client);
	if (error)
		ib_unregister_peer_memory_client(registration);
	return error;
}

static void __exit stub_exit(void)
{
	ib_unregister_client(&client);
	ib_unregister_peer_memory_client(registration);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_LICENSE("Dual BSD/GPL");
MODULE_VERSION(CLIENT_VERSION);
MODULE_DESCRIPTION("node_vm stub of " CLIENT_NAME);

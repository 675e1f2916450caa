// SPDX-License-Identifier: GPL-2.0
/*
 * Stands for the registry of peer-memory clients that OFED adds to ib_core, here as a module of its own
 * (some distributions' kernels had it so): /sys/kernel/mm/memory_peers/CLIENT/version.
 */
#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>

struct peer_client {
	struct list_head list;
	struct kobject *directory;
	char name[64];
	char version[16];
};

static struct kobject *memory_peers;
static LIST_HEAD(clients);
static DEFINE_MUTEX(clients_lock);

static ssize_t version_show(struct kobject *directory, struct kobj_attribute *attribute, char *page)
{
	struct peer_client *client;
	ssize_t length = -ENOENT;

	mutex_lock(&clients_lock);
	list_for_each_entry(client, &clients, list)
		if (client->directory == directory)
			length = sysfs_emit(page, "%s\n", client->version);
	mutex_unlock(&clients_lock);
	return length;
}

static struct kobj_attribute version_attribute = __ATTR_RO(version);

static bool is_registered(const char *name)
{
	struct peer_client *client;

	list_for_each_entry(client, &clients, list)
		if (!strcmp(client->name, name))
			return true;
	return false;
}

/* The client's handle; NULL if one of that name is there already. */
void *ib_register_peer_memory_client(const char *name, const char *version)
{
	struct peer_client *client = NULL;

	mutex_lock(&clients_lock);
	if (is_registered(name)) {
		pr_err("node_vm: a peer-memory client %s is there already\n", name);
		goto out;
	}
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		goto out;
	client->directory = kobject_create_and_add(name, memory_peers);
	if (!client->directory || sysfs_create_file(client->directory, &version_attribute.attr)) {
		kobject_put(client->directory);
		kfree(client);
		client = NULL;
		goto out;
	}
	strscpy(client->name, name, sizeof(client->name));
	strscpy(client->version, version, sizeof(client->version));
	list_add(&client->list, &clients);
out:
	mutex_unlock(&clients_lock);
	return client;
}
EXPORT_SYMBOL(ib_register_peer_memory_client);

void ib_unregister_peer_memory_client(void *handle)
{
	struct peer_client *client = handle;

	mutex_lock(&clients_lock);
	list_del(&client->list);
	mutex_unlock(&clients_lock);
	kobject_put(client->directory);
	kfree(client);
}
EXPORT_SYMBOL(ib_unregister_peer_memory_client);

static int __init stub_init(void)
{
	memory_peers = kobject_create_and_add("memory_peers", mm_kobj);
	return memory_peers ? 0 : -ENOMEM;
}

static void __exit stub_exit(void)
{
	kobject_put(memory_peers);
}

module_init(stub_init);
module_exit(stub_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("node_vm stub of OFED's peer-memory registry");

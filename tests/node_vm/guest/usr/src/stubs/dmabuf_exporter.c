// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/regions-dmabuf: ioctl(fd, any number, bytes) returns a new DMA-BUF of the module's own pages.
 * Debian's 6.1 has neither udmabuf nor a DMA heap.
 */
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>

struct buffer {
	unsigned int count;
	struct page *pages[];
};

static struct sg_table *buffer_map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	struct buffer *buffer = attachment->dmabuf->priv;
	struct sg_table *table = kzalloc(sizeof(*table), GFP_KERNEL);
	int error;

	if (!table)
		return ERR_PTR(-ENOMEM);
	error = sg_alloc_table_from_pages(table, buffer->pages, buffer->count, 0,
					  (unsigned long)buffer->count << PAGE_SHIFT, GFP_KERNEL);
	if (error)
		goto free;
	error = dma_map_sgtable(attachment->dev, table, direction, 0);
	if (!error)
		return table;
	sg_free_table(table);
free:
	kfree(table);
	return ERR_PTR(error);
}

static void buffer_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			 enum dma_data_direction direction)
{
	dma_unmap_sgtable(attachment->dev, table, direction, 0);
	sg_free_table(table);
	kfree(table);
}

static void buffer_free(struct buffer *buffer)
{
	unsigned int i;

	for (i = 0; i < buffer->count && buffer->pages[i]; i++)
		__free_page(buffer->pages[i]);
	kvfree(buffer);
}

static void buffer_release(struct dma_buf *dmabuf)
{
	buffer_free(dmabuf->priv);
}

static const struct dma_buf_ops buffer_operations = {
	.map_dma_buf = buffer_map,
	.unmap_dma_buf = buffer_unmap,
	.release = buffer_release,
};

static struct buffer *buffer_of(unsigned int count)
{
	struct buffer *buffer = kvzalloc(struct_size(buffer, pages, count), GFP_KERNEL);
	unsigned int i;

	if (!buffer)
		return NULL;
	buffer->count = count;
	for (i = 0; i < count; i++) {
		buffer->pages[i] = alloc_page(GFP_KERNEL);
		if (!buffer->pages[i]) {
			buffer_free(buffer);
			return NULL;
		}
	}
	return buffer;
}

static long export_ioctl(struct file *file, unsigned int command, unsigned long bytes)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct buffer *buffer;
	struct dma_buf *dmabuf;
	int fd;

	if (!bytes || bytes & ~PAGE_MASK || bytes > SZ_1G)
		return -EINVAL;
	buffer = buffer_of(bytes >> PAGE_SHIFT);
	if (!buffer)
		return -ENOMEM;
	info.ops = &buffer_operations;
	info.size = bytes;
	info.flags = O_RDWR;
	info.priv = buffer;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		buffer_free(buffer);
		return PTR_ERR(dmabuf);
	}
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}

static const struct file_operations export_operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = export_ioctl,
};

struct miscdevice dmabuf_exporter = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "regions-dmabuf",
	.mode = 0666,
	.fops = &export_operations,
};

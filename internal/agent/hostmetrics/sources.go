package hostmetrics

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"
	"github.com/shirou/gopsutil/v4/process"

	"github.com/quern/quern/internal/metric"
)

// readCPU adds the seconds of all processors together by mode, and the ratio of time that was not
// idle. Linux counts guests' time within user and nice, so there is no guest mode: the modes add up
// to the total.
func (c *Collector) readCPU(ctx context.Context, add adder) error {
	all, err := cpu.TimesWithContext(ctx, false)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("no processor times")
	}
	t := all[0]
	var total float64
	for _, mode := range []struct {
		name    string
		seconds float64
	}{
		{"user", t.User},
		{"nice", t.Nice},
		{"system", t.System},
		{"idle", t.Idle},
		{"iowait", t.Iowait},
		{"irq", t.Irq},
		{"softirq", t.Softirq},
		{"steal", t.Steal},
	} {
		add("host_cpu_seconds_total", mode.seconds, metric.Label{Name: "mode", Value: mode.name})
		total += mode.seconds
	}
	busy := total - t.Idle - t.Iowait

	// Linux may take back a little of iowait and idle, and two calls within one tick see no time
	// pass. Then the last ratio still holds.
	if dt := total - c.lastTotal; dt > 0 {
		c.lastRatio = min(1, max(0, (busy-c.lastBusy)/dt))
	}
	c.lastBusy, c.lastTotal = busy, total
	add("host_cpu_usage_ratio", c.lastRatio)

	if n, err := cpu.CountsWithContext(ctx, true); err == nil {
		add("host_cpus", float64(n))
	}
	return nil
}

func readMemory(ctx context.Context, add adder) error {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return err
	}
	add("host_memory_total_bytes", float64(m.Total))
	add("host_memory_used_bytes", float64(m.Used))
	add("host_memory_available_bytes", float64(m.Available))
	add("host_memory_free_bytes", float64(m.Free))
	add("host_memory_cached_bytes", float64(m.Cached))
	add("host_memory_buffers_bytes", float64(m.Buffers))
	return nil
}

func readSwap(ctx context.Context, add adder) error {
	s, err := mem.SwapMemoryWithContext(ctx)
	if err != nil {
		return err
	}
	add("host_swap_total_bytes", float64(s.Total))
	add("host_swap_used_bytes", float64(s.Used))
	add("host_swap_in_bytes_total", float64(s.Sin))
	add("host_swap_out_bytes_total", float64(s.Sout))
	return nil
}

// readFilesystems adds the usage of each real file system once, at its shortest mount point:
// containers bind one file system to many places.
func (c *Collector) readFilesystems(ctx context.Context, add adder) error {
	partitions, err := disk.PartitionsWithContext(ctx, false)
	errs := []error{err} // the root can be read even so
	for _, mount := range realMounts(partitions) {
		u, err := c.usage(ctx, mount)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", mount, err))
			continue
		}
		if u.Total == 0 {
			continue
		}
		label := metric.Label{Name: "mountpoint", Value: mount}
		add("host_filesystem_size_bytes", float64(u.Total), label)
		add("host_filesystem_used_bytes", float64(u.Used), label)
		add("host_filesystem_available_bytes", float64(u.Free), label)
		if u.InodesTotal > 0 { // btrfs and others have no fixed number
			add("host_filesystem_inodes", float64(u.InodesTotal), label)
			add("host_filesystem_inodes_used", float64(u.InodesUsed), label)
		}
	}
	return errors.Join(errs...)
}

// realMounts returns the mount points to read, sorted: one per device, and always the root, which
// inside a container is an overlay and not listed.
func realMounts(partitions []disk.PartitionStat) []string {
	byDevice := make(map[string]string)
	for _, p := range partitions {
		switch p.Fstype {
		case "squashfs", "iso9660", "erofs":
			continue // images: always full, by nature
		}
		at, seen := byDevice[p.Device]
		if !seen || len(p.Mountpoint) < len(at) || len(p.Mountpoint) == len(at) && p.Mountpoint < at {
			byDevice[p.Device] = p.Mountpoint
		}
	}
	mounts := slices.Sorted(maps.Values(byDevice))
	hasDrives := slices.ContainsFunc(mounts, func(at string) bool { return !strings.HasPrefix(at, "/") })
	if !hasDrives && !slices.Contains(mounts, "/") {
		mounts = slices.Insert(mounts, 0, "/")
	}
	return mounts
}

// notADisk matches partitions, which would count twice beside their disk, and memory and loop
// devices.
var notADisk = regexp.MustCompile(`^((z?ram|loop|fd|sr)\d+|(h|s|v|xv)d[a-z]+\d+|(nvme\d+n|mmcblk)\d+p\d+)$`)

func readDisks(ctx context.Context, add adder) error {
	disks, err := disk.IOCountersWithContext(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(disks)) {
		if notADisk.MatchString(name) {
			continue
		}
		d, label := disks[name], metric.Label{Name: "device", Value: name}
		add("host_disk_read_bytes_total", float64(d.ReadBytes), label)
		add("host_disk_written_bytes_total", float64(d.WriteBytes), label)
		add("host_disk_reads_total", float64(d.ReadCount), label)
		add("host_disk_writes_total", float64(d.WriteCount), label)
		add("host_disk_io_seconds_total", float64(d.IoTime)/1000, label) // from ms
	}
	return nil
}

// notAnInterface matches interfaces that are left out. One end of a container's link comes and goes
// with the container, and each would leave its series behind; the traffic shows at the bridge and
// at the host's own interface. Loopback, shapers and dummies carry no traffic beyond the host.
var notAnInterface = regexp.MustCompile(`^(lo\d*|(ifb|dummy)\d+|veth.*|cali.*|lxc.*)$`)

func readNetwork(ctx context.Context, add adder) error {
	interfaces, err := net.IOCountersWithContext(ctx, true)
	if err != nil {
		return err
	}
	slices.SortFunc(interfaces, func(a, b net.IOCountersStat) int { return strings.Compare(a.Name, b.Name) })
	for _, i := range interfaces {
		if notAnInterface.MatchString(i.Name) {
			continue
		}
		label := metric.Label{Name: "device", Value: i.Name}
		add("host_network_receive_bytes_total", float64(i.BytesRecv), label)
		add("host_network_transmit_bytes_total", float64(i.BytesSent), label)
		add("host_network_receive_packets_total", float64(i.PacketsRecv), label)
		add("host_network_transmit_packets_total", float64(i.PacketsSent), label)
		add("host_network_receive_errors_total", float64(i.Errin), label)
		add("host_network_transmit_errors_total", float64(i.Errout), label)
		add("host_network_receive_drops_total", float64(i.Dropin), label)
		add("host_network_transmit_drops_total", float64(i.Dropout), label)
	}
	return nil
}

func readLoad(ctx context.Context, add adder) error {
	l, err := load.AvgWithContext(ctx)
	if err != nil {
		return err
	}
	add("host_load1", l.Load1)
	add("host_load5", l.Load5)
	add("host_load15", l.Load15)
	return nil
}

func readUptime(ctx context.Context, add adder) error {
	seconds, err := host.UptimeWithContext(ctx)
	if err != nil {
		return err
	}
	add("host_uptime_seconds", float64(seconds))
	return nil
}

// readProcesses counts processes with one directory listing. It does not read the processes.
func readProcesses(ctx context.Context, add adder) error {
	pids, err := process.PidsWithContext(ctx)
	if err != nil {
		return err
	}
	add("host_processes", float64(len(pids)))
	return nil
}

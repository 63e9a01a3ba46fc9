/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/traas-stack/altershield-operator/hack/controlplane"
)

// Options say what a kubelet runs.
type Options struct {
	// ControlPlane was started with PodsIn: the namespace whose pods this runs.
	ControlPlane *controlplane.ControlPlane
	PodsIn       string
	// Image is what the pods run.
	Image Image
	// MaxRestartPeriod bounds the time between restarts of a container that ends
	// over and over, as crashLoopBackOff.maxContainerRestartPeriod does; 0 means
	// five minutes, as there.
	MaxRestartPeriod time.Duration
}

// Kubelet runs pods. Its methods may be called concurrently.
type Kubelet struct {
	c          *controlplane.ControlPlane
	namespace  string
	image      Image
	maxRestart time.Duration
	client     kubernetes.Interface
	apiServer  string
	network    netip.Prefix
	services   corelisters.ServiceLister
	endpoints  discoverylisters.EndpointSliceLister
	proxy      string
	listeners  []net.Listener

	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu sync.Mutex
	// stopped: no pod is taken on any more.
	stopped bool
	pods    map[types.UID]*pod
	hosts   map[netip.AddrPort]string
	ips     int
}

// Start starts to run the pods of a namespace, those that are there and those that
// come, on whatever node they are scheduled to, until Stop.
func Start(ctx context.Context, o Options) (_ *Kubelet, err error) {
	config := o.ControlPlane.RESTConfig()
	config.UserAgent = "altershield-kubelet"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	endpoint, err := url.Parse(o.ControlPlane.Endpoint())
	if err != nil {
		return nil, err
	}
	network, err := netip.ParsePrefix(controlplane.ServiceNetwork())
	if err != nil {
		return nil, err
	}
	k := &Kubelet{
		c: o.ControlPlane, namespace: o.PodsIn, image: o.Image, maxRestart: o.MaxRestartPeriod, client: client, apiServer: endpoint.Host,
		network: network, proxy: filepath.Join(o.ControlPlane.Dir(), "pods.sock"), pods: map[types.UID]*pod{}, hosts: map[netip.AddrPort]string{},
	}
	if k.maxRestart == 0 {
		k.maxRestart = 5 * time.Minute
	}
	k.life, k.end = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			k.Stop()
		}
	}()
	for socket, serve := range map[string]func(net.Listener){
		k.proxy:                        func(l net.Listener) { serveSocket(k.life, l, k.Dial) },
		o.ControlPlane.ServiceSocket(): k.serveTunnels,
	} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		k.listeners = append(k.listeners, l)
		go serve(l)
	}

	everywhere := informers.NewSharedInformerFactory(client, 0)
	k.services = everywhere.Core().V1().Services().Lister()
	k.endpoints = everywhere.Discovery().V1().EndpointSlices().Lister()
	ours := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(o.PodsIn))
	pods := ours.Core().V1().Pods().Informer()
	// Services are known before the first pod starts.
	everywhere.Core().V1().Services().Informer()
	everywhere.Discovery().V1().EndpointSlices().Informer()
	everywhere.Start(k.life.Done())
	for kind, synced := range everywhere.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, fmt.Errorf("no list of %v: %w", kind, context.Cause(ctx))
		}
	}
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    k.saw,
		UpdateFunc: func(_, o any) { k.saw(o) }, //nolint:contextcheck // pods outlive Start
		DeleteFunc: k.gone,
	}); err != nil {
		return nil, err
	}
	ours.Start(k.life.Done())
	return k, nil
}

// Stop ends the pods' processes at once, and the proxies.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	k.stopped = true
	k.mu.Unlock()
	k.end()
	k.work.Wait()
	for _, l := range k.listeners {
		_ = l.Close()
	}
}

// Host lets an address that endpoints name lead to one of this machine.
func (k *Kubelet) Host(endpoint netip.AddrPort, address string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hosts[endpoint] = address
}

// Kill ends the process of a pod's container at once, as a crash does.
func (k *Kubelet) Kill(name string) error { return k.signal(name, syscall.SIGKILL) }

// Freeze stops the process of a pod's container where it is, as a node does that
// hangs, until Thaw.
func (k *Kubelet) Freeze(name string) error { return k.signal(name, syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (k *Kubelet) Thaw(name string) error { return k.signal(name, syscall.SIGCONT) }

// signal holds mu all along: while the pid is known, its sandbox has not been
// waited for, and the pid is nobody else's.
func (k *Kubelet) signal(name string, signal syscall.Signal) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.name == name && p.pid != 0 {
			if err := syscall.Kill(p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			return nil
		}
	}
	return fmt.Errorf("no process of pod %s runs", name)
}

// LogPath is the log of all runs of a pod's container.
func (k *Kubelet) LogPath(pod string) string { return k.c.LogPath(processName(pod)) }

func processName(pod string) string { return "pod-" + pod }

// saw takes note of a pod as it is now.
func (k *Kubelet) saw(o any) {
	spec, ok := o.(*corev1.Pod)
	if !ok || spec.Spec.NodeName == "" {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	p := k.pods[spec.UID]
	if p == nil {
		k.ips++
		p = &pod{
			k: k, uid: spec.UID, name: spec.Name, dir: filepath.Join(k.c.Dir(), "pods", string(spec.UID)),
			ip:      netip.AddrFrom4([4]byte{10, 80, byte(k.ips >> 8), byte(k.ips)}),
			updates: make(chan *corev1.Pod, 1), tokens: map[string]serviceAccountToken{},
		}
		p.life, p.end = context.WithCancel(k.life)
		k.pods[spec.UID] = p
		k.work.Go(func() { p.run(spec) })
		return
	}
	// Only the newest counts.
	select {
	case <-p.updates:
	default:
	}
	p.updates <- spec
}

// gone takes note that the API server has a pod no more.
func (k *Kubelet) gone(o any) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	spec, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.pods[spec.UID]; p != nil {
		p.end()
	}
}

func (k *Kubelet) allServices() ([]*corev1.Service, error) {
	return k.services.List(labels.Everything())
}

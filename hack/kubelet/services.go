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
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

const dialTimeout = 5 * time.Second

// errNoEndpoint is what kube-proxy makes a refused connection.
var errNoEndpoint = errors.New("connection refused: no endpoint is ready")

// endpointsOf are the addresses a Service's port leads to: those that are ready,
// or where none is, those that end but still serve.
func endpointsOf(service *corev1.Service, port int32, slicesOf []*discoveryv1.EndpointSlice) []netip.AddrPort {
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port })
	if i < 0 {
		return nil
	}
	name := service.Spec.Ports[i].Name
	var ready, ending []netip.AddrPort
	for _, s := range slicesOf {
		for _, p := range s.Ports {
			if p.Port == nil || p.Name != nil && *p.Name != name || p.Name == nil && name != "" {
				continue
			}
			for _, e := range s.Endpoints {
				for _, a := range e.Addresses {
					ip, err := netip.ParseAddr(a)
					if err != nil {
						continue
					}
					at := netip.AddrPortFrom(ip, uint16(*p.Port))
					isReady := ptr.Deref(e.Conditions.Ready, true)
					switch {
					case isReady:
						ready = append(ready, at)
					case ptr.Deref(e.Conditions.Serving, isReady) && ptr.Deref(e.Conditions.Terminating, false):
						ending = append(ending, at)
					}
				}
			}
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return ending
}

// serviceAddresses are where the ports of Services are reached.
func serviceAddresses(services []*corev1.Service) []netip.AddrPort {
	var all []netip.AddrPort
	for _, s := range services {
		ip, err := netip.ParseAddr(s.Spec.ClusterIP)
		if err != nil {
			continue // headless, or elsewhere
		}
		for _, p := range s.Spec.Ports {
			if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
				all = append(all, netip.AddrPortFrom(ip, uint16(p.Port)))
			}
		}
	}
	return all
}

// hostsFile names Services as the DNS of a cluster does to a pod in a namespace.
func hostsFile(podIP netip.Addr, hostname string, services []*corev1.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, "127.0.0.1\tlocalhost\n%s\t%s\n", podIP, hostname)
	for _, s := range services {
		if _, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
			at := s.Name + "." + s.Namespace
			fmt.Fprintf(&b, "%s\t%s %s.svc %s.svc.cluster.local\n", s.Spec.ClusterIP, at, at, at)
		}
	}
	return b.String()
}

// Dial connects to an address inside the cluster: of a Service, by its cluster IP
// or its name as in callback-service.shop.svc, or of a pod that runs here.
func (k *Kubelet) Dial(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := net.DefaultResolver.LookupPort(ctx, "tcp", port)
	if err != nil {
		return nil, err
	}
	services, err := k.services.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		name := s.Name + "." + s.Namespace
		if host != s.Spec.ClusterIP && host != name && host != name+".svc" && host != name+".svc.cluster.local" {
			continue
		}
		if s.Name == "kubernetes" && s.Namespace == metav1.NamespaceDefault {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", k.apiServer)
		}
		of, err := k.endpoints.EndpointSlices(s.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name}))
		if err != nil {
			return nil, err
		}
		at := endpointsOf(s, int32(number), of)
		if len(at) == 0 {
			return nil, fmt.Errorf("%s (%s): %w", address, name, errNoEndpoint)
		}
		return k.dialPod(ctx, at[rand.IntN(len(at))])
	}
	to, err := netip.ParseAddr(host)
	if err != nil {
		return nil, fmt.Errorf("dial %s: no such host in the cluster", address)
	}
	return k.dialPod(ctx, netip.AddrPortFrom(to, uint16(number)))
}

// dialPod connects to an address that no Service has.
func (k *Kubelet) dialPod(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	k.mu.Lock()
	host := k.hosts[to]
	var p *pod
	for _, q := range k.pods {
		if q.ip == to.Addr() {
			p = q
		}
	}
	k.mu.Unlock()
	if host != "" {
		return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", host)
	}
	if p == nil {
		return nil, fmt.Errorf("dial %s: no route to host", to)
	}
	return p.dial(ctx, int(to.Port()))
}

// Transport is for clients inside the cluster that are no pods.
func (k *Kubelet) Transport() *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return k.Dial(ctx, address) }}
}

// serveTunnels answers the CONNECT requests by which the API server reaches Services.
func (k *Kubelet) serveTunnels(l net.Listener) {
	server := &http.Server{ReadHeaderTimeout: dialTimeout, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Error(w, "CONNECT only", http.StatusMethodNotAllowed)
			return
		}
		to, err := k.Dial(r.Context(), r.Host)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer to.Close()
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
			return
		}
		early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
		if _, err := to.Write(early); err != nil {
			return
		}
		splice(conn, to)
	})}
	_ = server.Serve(l) // ends with the listener
}

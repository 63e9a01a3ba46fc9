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
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// An Image is what containers of an image run.
type Image struct {
	// Name is the image without its tag.
	Name string
	// Files are files of this machine by their paths in the image.
	Files map[string]string
	// Entrypoint is the command of containers that name none.
	Entrypoint []string
	// UID and GID are the user of containers that name none.
	UID, GID int64
}

// is says whether a container's image is this one, of whatever version.
func (i *Image) is(reference string) bool {
	name, _, _ := strings.Cut(reference, "@")
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name = name[:at]
	}
	return name == i.Name
}

// unsupported says what of a pod's spec this package cannot do.
func unsupported(p *corev1.Pod) error {
	var errs []error
	no := func(is bool, what string) {
		if is {
			errs = append(errs, fmt.Errorf("pod %s: %s cannot be done here", p.Name, what))
		}
	}
	no(len(p.Spec.Containers) != 1, "more than one container")
	no(len(p.Spec.InitContainers) > 0, "init containers")
	no(p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC, "using the host's namespaces")
	no(p.Spec.RestartPolicy != corev1.RestartPolicyAlways, "a restartPolicy other than Always")
	no(len(p.Spec.HostAliases) > 0 || p.Spec.DNSConfig != nil, "names of its own")
	c := &p.Spec.Containers[0]
	no(c.SecurityContext != nil && c.SecurityContext.Capabilities != nil && len(c.SecurityContext.Capabilities.Add) > 0, "adding capabilities")
	no(len(c.EnvFrom) > 0, "envFrom")
	no(c.Lifecycle != nil && c.Lifecycle.PostStart != nil, "postStart")
	no(c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Sleep == nil, "a preStop other than sleep")
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
		no(probe != nil && probe.HTTPGet == nil, "a probe other than httpGet")
		no(probe != nil && probe.HTTPGet != nil && (probe.HTTPGet.Host != "" || len(probe.HTTPGet.HTTPHeaders) > 0), "a probe of another host, or with headers,")
	}
	for _, m := range c.VolumeMounts {
		no(m.SubPath != "" || m.SubPathExpr != "", "subPath")
	}
	return errors.Join(errs...)
}

// references are the values that are looked up for a container's environment.
type references struct {
	secret, configMap func(name, key string) (string, bool, error)
}

// environment is what a container finds in its environment.
func environment(p *corev1.Pod, c *corev1.Container, ip netip.Addr, services []*corev1.Service, refs references) ([]string, error) {
	env := map[string]string{"HOSTNAME": p.Name, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, s := range services {
		isAPI := s.Name == "kubernetes" && s.Namespace == metav1.NamespaceDefault
		links := p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks
		if !isAPI && (!links || s.Namespace != p.Namespace) || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		name := strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
		env[name+"_SERVICE_HOST"] = s.Spec.ClusterIP
		for i, port := range s.Spec.Ports {
			value := fmt.Sprint(port.Port)
			if i == 0 {
				env[name+"_SERVICE_PORT"] = value
			}
			if port.Name != "" {
				env[name+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(port.Name, "-", "_"))] = value
			}
		}
	}
	for _, e := range c.Env {
		value, found, err := valueOf(p, e, ip, refs)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", e.Name, err)
		}
		if found {
			env[e.Name] = expand(value, env)
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

func valueOf(p *corev1.Pod, e corev1.EnvVar, ip netip.Addr, refs references) (value string, found bool, err error) {
	from := e.ValueFrom
	if from == nil {
		return e.Value, true, nil
	}
	looked := func(value string, found bool, err error, optional *bool, what string) (string, bool, error) {
		if err == nil && !found && (optional == nil || !*optional) {
			err = errors.New("there is no " + what)
		}
		return value, found, err
	}
	switch {
	case from.FieldRef != nil:
		value, err := fieldOf(p, from.FieldRef.FieldPath, ip)
		return value, err == nil, err
	case from.SecretKeyRef != nil:
		r := from.SecretKeyRef
		value, found, err := refs.secret(r.Name, r.Key)
		return looked(value, found, err, r.Optional, "key "+r.Key+" of Secret "+r.Name)
	case from.ConfigMapKeyRef != nil:
		r := from.ConfigMapKeyRef
		value, found, err := refs.configMap(r.Name, r.Key)
		return looked(value, found, err, r.Optional, "key "+r.Key+" of ConfigMap "+r.Name)
	default:
		return "", false, errors.New("this source cannot be read here")
	}
}

// fieldOf is what a field of a pod holds.
func fieldOf(p *corev1.Pod, path string, ip netip.Addr) (string, error) {
	if name, ok := strings.CutPrefix(path, "metadata.labels['"); ok {
		return p.Labels[strings.TrimSuffix(name, "']")], nil
	}
	if name, ok := strings.CutPrefix(path, "metadata.annotations['"); ok {
		return p.Annotations[strings.TrimSuffix(name, "']")], nil
	}
	switch path {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs":
		return ip.String(), nil
	default:
		return "", fmt.Errorf("the field %s cannot be read here", path)
	}
}

// expand replaces references $(NAME) to variables; $$ is a dollar sign, and what
// is not known stays.
func expand(text string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := env[strings.Trim(found, "$()")]; ok {
			return value
		}
		return found
	})
}

var reference = regexp.MustCompile(`\$\$|\$\([^()$]+\)`)

// command is what a container runs.
func command(c *corev1.Container, image *Image, env []string) []string {
	known := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		known[name] = value
	}
	args := c.Command
	if len(args) == 0 {
		args = image.Entrypoint
	}
	var all []string
	for _, a := range slices.Concat(args, c.Args) {
		all = append(all, expand(a, known))
	}
	return all
}

// userOf is who a container runs as.
func userOf(p *corev1.Pod, c *corev1.Container, image *Image) (uid, gid int64, err error) {
	uid, gid = image.UID, image.GID
	nonRoot := false
	if s := p.Spec.SecurityContext; s != nil {
		uid, gid = ptr.Deref(s.RunAsUser, uid), ptr.Deref(s.RunAsGroup, gid)
		nonRoot = ptr.Deref(s.RunAsNonRoot, nonRoot)
	}
	if s := c.SecurityContext; s != nil {
		uid, gid = ptr.Deref(s.RunAsUser, uid), ptr.Deref(s.RunAsGroup, gid)
		nonRoot = ptr.Deref(s.RunAsNonRoot, nonRoot)
	}
	if nonRoot && uid == 0 {
		return 0, 0, errors.New("container has runAsNonRoot and image will run as root")
	}
	return uid, gid, nil
}

// readOnlyRoot says whether a container may not write to its root file system.
func readOnlyRoot(c *corev1.Container) bool {
	return c.SecurityContext != nil && ptr.Deref(c.SecurityContext.ReadOnlyRootFilesystem, false)
}

// portOf is the number of a port of a container.
func portOf(c *corev1.Container, port intstr.IntOrString) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort), nil
		}
	}
	return 0, fmt.Errorf("container %s has no port %s", c.Name, port.StrVal)
}

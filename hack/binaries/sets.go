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

package binaries

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// set is a set of programs that are built together.
type set struct {
	// name is the name of the set in messages, product that of the product whose module is lead.
	name, product, lead string
	dir                 string
	programs            []binary
	// pins are the directories of the modules that pin the programs, by the modules of the programs.
	pins map[string]string
	// linkerFlags returns the -ldflags of every program, from the versions of the modules.
	linkerFlags func(versions map[string]string) string
	tags        string
	// cpuMinutes is the measured time to build everything on one core of an ordinary
	// machine, and sourcesMB the measured size of the downloaded sources.
	cpuMinutes, sourcesMB int
}

// binary is a program: its package, the name that the go command gives to the result,
// the module with its version, and the arguments that print the version of an installed
// one. An installed one is not taken without such arguments.
type binary struct {
	name, pkg, output, module string
	version                   []string
}

// modules returns the modules of the programs, the leading one first.
func (s *set) modules() []string {
	all := []string{s.lead}
	for _, b := range s.programs {
		if !slices.Contains(all, b.module) {
			all = append(all, b.module)
		}
	}
	return all
}

const (
	kubernetes       = "k8s.io/kubernetes"
	etcd             = "go.etcd.io/etcd/server/v3"
	kwok             = "sigs.k8s.io/kwok"
	prometheus       = "github.com/prometheus/prometheus"
	alertmanager     = "github.com/prometheus/alertmanager"
	kubeStateMetrics = "k8s.io/kube-state-metrics/v2"
	kruise           = "github.com/openkruise/kruise"
	lws              = "sigs.k8s.io/lws"
)

// VersionVariable names the environment variable that chooses another minor release of Kubernetes than the pinned one, such as 1.33.
const VersionVariable = "K8S_VERSION"

var controlPlanePrograms = []binary{
	{"etcd", etcd, "server", etcd, []string{"--version"}},
	{"kube-apiserver", kubernetes + "/cmd/kube-apiserver", "kube-apiserver", kubernetes, []string{"--version"}},
	{"kube-controller-manager", kubernetes + "/cmd/kube-controller-manager", "kube-controller-manager", kubernetes, []string{"--version"}},
	{"kube-scheduler", kubernetes + "/cmd/kube-scheduler", "kube-scheduler", kubernetes, []string{"--version"}},
	{"kubectl", kubernetes + "/cmd/kubectl", "kubectl", kubernetes, []string{"version", "--client", "--output=json"}},
	{"kwok", kwok + "/cmd/kwok", "kwok", kwok, []string{"--version"}},
}

var monitoringPrograms = []binary{
	{name: "prometheus", pkg: prometheus + "/cmd/prometheus", output: "prometheus", module: prometheus},
	{name: "alertmanager", pkg: alertmanager + "/cmd/alertmanager", output: "alertmanager", module: alertmanager},
	{name: "kube-state-metrics", pkg: kubeStateMetrics, output: "kube-state-metrics", module: kubeStateMetrics},
}

var kindsPrograms = []binary{
	{name: "kruise-manager", pkg: kruise, output: "kruise", module: kruise},
	{name: "lws-manager", pkg: lws + "/cmd", output: "cmd", module: lws},
}

// Dir returns the directory of the binaries of the repository at root, one for each
// release of Kubernetes. It is also a BinaryAssetsDirectory of envtest: etcd,
// kube-apiserver and kubectl have the names that envtest expects.
func Dir(root string) string {
	if v := os.Getenv(VersionVariable); v != "" {
		return filepath.Join(root, "bin", "k8s-"+v)
	}
	return filepath.Join(root, "bin", "k8s")
}

// controlPlane returns the programs of the local control plane. VersionVariable
// chooses the programs of Kubernetes; etcd and kwok are the same for all.
func controlPlane(root string) (*set, error) {
	pins := filepath.Join(root, "hack", "controlplane", "pins")
	s := &set{
		name: "control plane", product: "Kubernetes", lead: kubernetes, dir: Dir(root), programs: controlPlanePrograms,
		pins:        map[string]string{etcd: pins, kwok: pins, kubernetes: pins},
		linkerFlags: controlPlaneFlags, cpuMinutes: 10, sourcesMB: 70,
	}
	v := os.Getenv(VersionVariable)
	if v == "" {
		return s, nil
	}
	s.pins[kubernetes] = filepath.Join(pins, "v"+v)
	if _, err := os.Stat(s.pins[kubernetes]); err == nil {
		return s, nil
	}
	others, err := filepath.Glob(filepath.Join(pins, "v*"))
	if err != nil {
		return nil, err
	}
	for i, dir := range others {
		others[i] = strings.TrimPrefix(filepath.Base(dir), "v")
	}
	return nil, fmt.Errorf("%s is %q: leave it empty, or set it to one of %s", VersionVariable, v, strings.Join(others, ", "))
}

// controlPlaneFlags returns the versions that the release builds of the projects set,
// and `go build` does not.
func controlPlaneFlags(versions map[string]string) string {
	major, minor, _ := strings.Cut(minor(versions[kubernetes]), ".")
	return strings.Join([]string{
		"-s -w",
		"-X k8s.io/component-base/version.gitVersion=" + versions[kubernetes],
		"-X k8s.io/component-base/version.gitMajor=" + major,
		"-X k8s.io/component-base/version.gitMinor=" + minor,
		"-X k8s.io/component-base/version.gitTreeState=clean",
		"-X k8s.io/client-go/pkg/version.gitVersion=" + versions[kubernetes],
		"-X sigs.k8s.io/kwok/pkg/consts.Version=" + versions[kwok],
	}, " ")
}

// monitoring returns Prometheus, Alertmanager and kube-state-metrics. Each has a
// module of pins of its own: they require different releases of the same modules.
func monitoring(root string) *set {
	pins := filepath.Join(root, "hack", "monitoring")
	return &set{
		name: "monitoring", product: "Prometheus", lead: prometheus, dir: filepath.Join(root, "bin", "monitoring"),
		programs: monitoringPrograms,
		pins: map[string]string{
			prometheus:       filepath.Join(pins, "prometheus"),
			alertmanager:     filepath.Join(pins, "alertmanager"),
			kubeStateMetrics: filepath.Join(pins, "kube-state-metrics"),
		},
		linkerFlags: func(map[string]string) string { return "-s -w" },
		// The clients of clouds and orchestrators are three quarters of Prometheus.
		tags: "remove_all_sd", cpuMinutes: 8, sourcesMB: 250,
	}
}

// kinds returns the controllers of OpenKruise and LeaderWorkerSet. Each has a module of pins of its own: they require
// different releases of the same modules.
func kinds(root string) *set {
	pins := filepath.Join(root, "hack", "kinds")
	return &set{
		name: "set of controllers", product: "OpenKruise", lead: kruise, dir: filepath.Join(root, "bin", "kinds"),
		programs:    kindsPrograms,
		pins:        map[string]string{kruise: filepath.Join(pins, "kruise"), lws: filepath.Join(pins, "lws")},
		linkerFlags: func(map[string]string) string { return "-s -w" },
		cpuMinutes:  6, sourcesMB: 120,
	}
}

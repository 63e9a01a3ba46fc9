//go:build tools

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

// Package kinds pins the products whose kinds config/kinds declares. Tests read their CustomResourceDefinitions. Nothing of
// the products is compiled: the packages here are those that name their modules with the fewest requirements.
package kinds

import (
	_ "github.com/argoproj/argo-rollouts/pkg/apis/rollouts"
	_ "github.com/kserve/kserve/pkg/types"
	_ "github.com/openkruise/kruise/pkg/util/requeueduration"
	_ "github.com/ray-project/kuberay/ray-operator/pkg/utils"
	_ "istio.io/api/label"
	_ "knative.dev/serving/config/core/300-resources"
	_ "sigs.k8s.io/gateway-api/apis"
	_ "sigs.k8s.io/lws/pkg/version"
)

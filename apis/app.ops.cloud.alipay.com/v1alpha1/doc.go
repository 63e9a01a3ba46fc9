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

// Package v1alpha1 holds the kinds by which the operator records and shows the
// releases it defends: ChangeWorkload (one release of one version), ChangePod
// (one batch of its pods) and OpsConfigInfo (configuration that takes effect
// without a restart). It also holds the label and annotation keys the operator
// and its users write on ordinary workloads.
//
// +kubebuilder:object:generate=true
// +groupName=app.ops.cloud.alipay.com
package v1alpha1

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

// Code generated once, by reflection on k8s.io/api v0.37.2. DO NOT EDIT.
//
// This table is FROZEN. A change of it would change the versions of existing
// workloads, and each would look released again: TestTableIsFrozen fails
// then. Fields that newer API servers know and this table does not are emitted
// after the known ones, sorted by key, so they still count;
// TestCanonicalIsEncodingJSON notices when k8s.io/api gains one.

package workload

var keysOfOwnerReference = &object{fields: []field{
	{key: "apiVersion", kind: text, zero: "\"\""},
	{key: "kind", kind: text, zero: "\"\""},
	{key: "name", kind: text, zero: "\"\""},
	{key: "uid", kind: text, zero: "\"\""},
	{key: "controller", kind: value},
	{key: "blockOwnerDeletion", kind: value},
}}

var keysOfManagedFieldsEntry = &object{fields: []field{
	{key: "manager", kind: text},
	{key: "operation", kind: text},
	{key: "apiVersion", kind: text},
	{key: "time", kind: value},
	{key: "fieldsType", kind: text},
	{key: "fieldsV1", kind: value},
	{key: "subresource", kind: text},
}}

var keysOfObjectMeta = &object{fields: []field{
	{key: "name", kind: text},
	{key: "generateName", kind: text},
	{key: "namespace", kind: text},
	{key: "selfLink", kind: text},
	{key: "uid", kind: text},
	{key: "resourceVersion", kind: text},
	{key: "generation", kind: integer},
	{key: "creationTimestamp", kind: value, zero: "null"},
	{key: "deletionTimestamp", kind: value},
	{key: "deletionGracePeriodSeconds", kind: value},
	{key: "labels", kind: collection},
	{key: "annotations", kind: collection},
	{key: "ownerReferences", kind: list, of: keysOfOwnerReference},
	{key: "finalizers", kind: collection},
	{key: "managedFields", kind: list, of: keysOfManagedFieldsEntry},
}}

var keysOfHostPathVolumeSource = &object{fields: []field{
	{key: "path", kind: text, zero: "\"\""},
	{key: "type", kind: value},
}}

var keysOfEmptyDirVolumeSource = &object{fields: []field{
	{key: "medium", kind: text},
	{key: "sizeLimit", kind: value},
	{key: "mode", kind: value},
}}

var keysOfGCEPersistentDiskVolumeSource = &object{fields: []field{
	{key: "pdName", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "partition", kind: integer},
	{key: "readOnly", kind: boolean},
}}

var keysOfAWSElasticBlockStoreVolumeSource = &object{fields: []field{
	{key: "volumeID", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "partition", kind: integer},
	{key: "readOnly", kind: boolean},
}}

var keysOfGitRepoVolumeSource = &object{fields: []field{
	{key: "repository", kind: text, zero: "\"\""},
	{key: "revision", kind: text},
	{key: "directory", kind: text},
}}

var keysOfKeyToPath = &object{fields: []field{
	{key: "key", kind: text, zero: "\"\""},
	{key: "path", kind: text, zero: "\"\""},
	{key: "mode", kind: value},
	{key: "user", kind: value},
}}

var keysOfSecretVolumeSource = &object{fields: []field{
	{key: "secretName", kind: text},
	{key: "items", kind: list, of: keysOfKeyToPath},
	{key: "defaultMode", kind: value},
	{key: "optional", kind: value},
	{key: "defaultUser", kind: value},
}}

var keysOfNFSVolumeSource = &object{fields: []field{
	{key: "server", kind: text, zero: "\"\""},
	{key: "path", kind: text, zero: "\"\""},
	{key: "readOnly", kind: boolean},
}}

var keysOfLocalObjectReference = &object{fields: []field{
	{key: "name", kind: text},
}}

var keysOfISCSIVolumeSource = &object{fields: []field{
	{key: "targetPortal", kind: text, zero: "\"\""},
	{key: "iqn", kind: text, zero: "\"\""},
	{key: "lun", kind: integer, zero: "0"},
	{key: "iscsiInterface", kind: text},
	{key: "fsType", kind: text},
	{key: "readOnly", kind: boolean},
	{key: "portals", kind: collection},
	{key: "chapAuthDiscovery", kind: boolean},
	{key: "chapAuthSession", kind: boolean},
	{key: "secretRef", kind: pointer, of: keysOfLocalObjectReference},
	{key: "initiatorName", kind: value},
}}

var keysOfGlusterfsVolumeSource = &object{fields: []field{
	{key: "endpoints", kind: text, zero: "\"\""},
	{key: "path", kind: text, zero: "\"\""},
	{key: "readOnly", kind: boolean},
}}

var keysOfPersistentVolumeClaimVolumeSource = &object{fields: []field{
	{key: "claimName", kind: text, zero: "\"\""},
	{key: "readOnly", kind: boolean},
}}

var keysOfRBDVolumeSource = &object{fields: []field{
	{key: "monitors", kind: collection, zero: "null"},
	{key: "image", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "pool", kind: text},
	{key: "user", kind: text},
	{key: "keyring", kind: text},
	{key: "secretRef", kind: pointer, of: keysOfLocalObjectReference},
	{key: "readOnly", kind: boolean},
}}

var keysOfFlexVolumeSource = &object{fields: []field{
	{key: "driver", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "secretRef", kind: pointer, of: keysOfLocalObjectReference},
	{key: "readOnly", kind: boolean},
	{key: "options", kind: collection},
}}

var keysOfCinderVolumeSource = &object{fields: []field{
	{key: "volumeID", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "readOnly", kind: boolean},
	{key: "secretRef", kind: pointer, of: keysOfLocalObjectReference},
}}

var keysOfCephFSVolumeSource = &object{fields: []field{
	{key: "monitors", kind: collection, zero: "null"},
	{key: "path", kind: text},
	{key: "user", kind: text},
	{key: "secretFile", kind: text},
	{key: "secretRef", kind: pointer, of: keysOfLocalObjectReference},
	{key: "readOnly", kind: boolean},
}}

var keysOfFlockerVolumeSource = &object{fields: []field{
	{key: "datasetName", kind: text},
	{key: "datasetUUID", kind: text},
}}

var keysOfObjectFieldSelector = &object{fields: []field{
	{key: "apiVersion", kind: text},
	{key: "fieldPath", kind: text, zero: "\"\""},
}}

var keysOfResourceFieldSelector = &object{fields: []field{
	{key: "containerName", kind: text},
	{key: "resource", kind: text, zero: "\"\""},
	{key: "divisor", kind: value, zero: "\"0\""},
}}

var keysOfDownwardAPIVolumeFile = &object{fields: []field{
	{key: "path", kind: text, zero: "\"\""},
	{key: "fieldRef", kind: pointer, of: keysOfObjectFieldSelector},
	{key: "resourceFieldRef", kind: pointer, of: keysOfResourceFieldSelector},
	{key: "mode", kind: value},
	{key: "user", kind: value},
}}

var keysOfDownwardAPIVolumeSource = &object{fields: []field{
	{key: "items", kind: list, of: keysOfDownwardAPIVolumeFile},
	{key: "defaultMode", kind: value},
	{key: "defaultUser", kind: value},
}}

var keysOfFCVolumeSource = &object{fields: []field{
	{key: "targetWWNs", kind: collection},
	{key: "lun", kind: value},
	{key: "fsType", kind: text},
	{key: "readOnly", kind: boolean},
	{key: "wwids", kind: collection},
}}

var keysOfAzureFileVolumeSource = &object{fields: []field{
	{key: "secretName", kind: text, zero: "\"\""},
	{key: "shareName", kind: text, zero: "\"\""},
	{key: "readOnly", kind: boolean},
}}

var keysOfConfigMapVolumeSource = &object{fields: []field{
	{key: "name", kind: text},
	{key: "items", kind: list, of: keysOfKeyToPath},
	{key: "defaultMode", kind: value},
	{key: "optional", kind: value},
	{key: "defaultUser", kind: value},
}}

var keysOfVsphereVirtualDiskVolumeSource = &object{fields: []field{
	{key: "volumePath", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "storagePolicyName", kind: text},
	{key: "storagePolicyID", kind: text},
}}

var keysOfQuobyteVolumeSource = &object{fields: []field{
	{key: "registry", kind: text, zero: "\"\""},
	{key: "volume", kind: text, zero: "\"\""},
	{key: "readOnly", kind: boolean},
	{key: "user", kind: text},
	{key: "group", kind: text},
	{key: "tenant", kind: text},
}}

var keysOfAzureDiskVolumeSource = &object{fields: []field{
	{key: "diskName", kind: text, zero: "\"\""},
	{key: "diskURI", kind: text, zero: "\"\""},
	{key: "cachingMode", kind: value},
	{key: "fsType", kind: value},
	{key: "readOnly", kind: value},
	{key: "kind", kind: value},
}}

var keysOfPhotonPersistentDiskVolumeSource = &object{fields: []field{
	{key: "pdID", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
}}

var keysOfSecretProjection = &object{fields: []field{
	{key: "name", kind: text},
	{key: "items", kind: list, of: keysOfKeyToPath},
	{key: "optional", kind: value},
}}

var keysOfDownwardAPIProjection = &object{fields: []field{
	{key: "items", kind: list, of: keysOfDownwardAPIVolumeFile},
}}

var keysOfConfigMapProjection = &object{fields: []field{
	{key: "name", kind: text},
	{key: "items", kind: list, of: keysOfKeyToPath},
	{key: "optional", kind: value},
}}

var keysOfServiceAccountTokenProjection = &object{fields: []field{
	{key: "audience", kind: text},
	{key: "expirationSeconds", kind: value},
	{key: "path", kind: text, zero: "\"\""},
	{key: "user", kind: value},
}}

var keysOfLabelSelectorRequirement = &object{fields: []field{
	{key: "key", kind: text, zero: "\"\""},
	{key: "operator", kind: text, zero: "\"\""},
	{key: "values", kind: collection},
}}

var keysOfLabelSelector = &object{fields: []field{
	{key: "matchLabels", kind: collection},
	{key: "matchExpressions", kind: list, of: keysOfLabelSelectorRequirement},
}}

var keysOfClusterTrustBundleProjection = &object{fields: []field{
	{key: "name", kind: value},
	{key: "signerName", kind: value},
	{key: "labelSelector", kind: pointer, of: keysOfLabelSelector},
	{key: "optional", kind: value},
	{key: "path", kind: text, zero: "\"\""},
	{key: "user", kind: value},
}}

var keysOfPodCertificateProjection = &object{fields: []field{
	{key: "signerName", kind: text},
	{key: "keyType", kind: text},
	{key: "maxExpirationSeconds", kind: value},
	{key: "credentialBundlePath", kind: text},
	{key: "keyPath", kind: text},
	{key: "certificateChainPath", kind: text},
	{key: "userAnnotations", kind: collection},
	{key: "user", kind: value},
}}

var keysOfVolumeProjection = &object{fields: []field{
	{key: "secret", kind: pointer, of: keysOfSecretProjection},
	{key: "downwardAPI", kind: pointer, of: keysOfDownwardAPIProjection},
	{key: "configMap", kind: pointer, of: keysOfConfigMapProjection},
	{key: "serviceAccountToken", kind: pointer, of: keysOfServiceAccountTokenProjection},
	{key: "clusterTrustBundle", kind: pointer, of: keysOfClusterTrustBundleProjection},
	{key: "podCertificate", kind: pointer, of: keysOfPodCertificateProjection},
}}

var keysOfProjectedVolumeSource = &object{fields: []field{
	{key: "sources", kind: list, zero: "null", of: keysOfVolumeProjection},
	{key: "defaultMode", kind: value},
	{key: "defaultUser", kind: value},
}}

var keysOfPortworxVolumeSource = &object{fields: []field{
	{key: "volumeID", kind: text, zero: "\"\""},
	{key: "fsType", kind: text},
	{key: "readOnly", kind: boolean},
}}

var keysOfScaleIOVolumeSource = &object{fields: []field{
	{key: "gateway", kind: text, zero: "\"\""},
	{key: "system", kind: text, zero: "\"\""},
	{key: "secretRef", kind: pointer, zero: "null", of: keysOfLocalObjectReference},
	{key: "sslEnabled", kind: boolean},
	{key: "protectionDomain", kind: text},
	{key: "storagePool", kind: text},
	{key: "storageMode", kind: text},
	{key: "volumeName", kind: text},
	{key: "fsType", kind: text},
	{key: "readOnly", kind: boolean},
}}

var keysOfStorageOSVolumeSource = &object{fields: []field{
	{key: "volumeName", kind: text},
	{key: "volumeNamespace", kind: text},
	{key: "fsType", kind: text},
	{key: "readOnly", kind: boolean},
	{key: "secretRef", kind: pointer, of: keysOfLocalObjectReference},
}}

var keysOfCSIVolumeSource = &object{fields: []field{
	{key: "driver", kind: text, zero: "\"\""},
	{key: "readOnly", kind: value},
	{key: "fsType", kind: value},
	{key: "volumeAttributes", kind: collection},
	{key: "nodePublishSecretRef", kind: pointer, of: keysOfLocalObjectReference},
}}

var keysOfVolumeResourceRequirements = &object{fields: []field{
	{key: "limits", kind: collection},
	{key: "requests", kind: collection},
}}

var keysOfTypedLocalObjectReference = &object{fields: []field{
	{key: "apiGroup", kind: value, zero: "null"},
	{key: "kind", kind: text, zero: "\"\""},
	{key: "name", kind: text, zero: "\"\""},
}}

var keysOfTypedObjectReference = &object{fields: []field{
	{key: "apiGroup", kind: value, zero: "null"},
	{key: "kind", kind: text, zero: "\"\""},
	{key: "name", kind: text, zero: "\"\""},
	{key: "namespace", kind: value},
}}

var keysOfPersistentVolumeClaimSpec = &object{fields: []field{
	{key: "accessModes", kind: collection},
	{key: "selector", kind: pointer, of: keysOfLabelSelector},
	{key: "resources", kind: embedded, of: keysOfVolumeResourceRequirements},
	{key: "volumeName", kind: text},
	{key: "storageClassName", kind: value},
	{key: "volumeMode", kind: value},
	{key: "dataSource", kind: pointer, of: keysOfTypedLocalObjectReference},
	{key: "dataSourceRef", kind: pointer, of: keysOfTypedObjectReference},
	{key: "volumeAttributesClassName", kind: value},
}}

var keysOfPersistentVolumeClaimTemplate = &object{fields: []field{
	{key: "metadata", kind: embedded, of: keysOfObjectMeta},
	{key: "spec", kind: embedded, of: keysOfPersistentVolumeClaimSpec},
}}

var keysOfEphemeralVolumeSource = &object{fields: []field{
	{key: "volumeClaimTemplate", kind: pointer, of: keysOfPersistentVolumeClaimTemplate},
}}

var keysOfImageVolumeSource = &object{fields: []field{
	{key: "reference", kind: text},
	{key: "pullPolicy", kind: text},
}}

var keysOfVolume = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "hostPath", kind: pointer, of: keysOfHostPathVolumeSource},
	{key: "emptyDir", kind: pointer, of: keysOfEmptyDirVolumeSource},
	{key: "gcePersistentDisk", kind: pointer, of: keysOfGCEPersistentDiskVolumeSource},
	{key: "awsElasticBlockStore", kind: pointer, of: keysOfAWSElasticBlockStoreVolumeSource},
	{key: "gitRepo", kind: pointer, of: keysOfGitRepoVolumeSource},
	{key: "secret", kind: pointer, of: keysOfSecretVolumeSource},
	{key: "nfs", kind: pointer, of: keysOfNFSVolumeSource},
	{key: "iscsi", kind: pointer, of: keysOfISCSIVolumeSource},
	{key: "glusterfs", kind: pointer, of: keysOfGlusterfsVolumeSource},
	{key: "persistentVolumeClaim", kind: pointer, of: keysOfPersistentVolumeClaimVolumeSource},
	{key: "rbd", kind: pointer, of: keysOfRBDVolumeSource},
	{key: "flexVolume", kind: pointer, of: keysOfFlexVolumeSource},
	{key: "cinder", kind: pointer, of: keysOfCinderVolumeSource},
	{key: "cephfs", kind: pointer, of: keysOfCephFSVolumeSource},
	{key: "flocker", kind: pointer, of: keysOfFlockerVolumeSource},
	{key: "downwardAPI", kind: pointer, of: keysOfDownwardAPIVolumeSource},
	{key: "fc", kind: pointer, of: keysOfFCVolumeSource},
	{key: "azureFile", kind: pointer, of: keysOfAzureFileVolumeSource},
	{key: "configMap", kind: pointer, of: keysOfConfigMapVolumeSource},
	{key: "vsphereVolume", kind: pointer, of: keysOfVsphereVirtualDiskVolumeSource},
	{key: "quobyte", kind: pointer, of: keysOfQuobyteVolumeSource},
	{key: "azureDisk", kind: pointer, of: keysOfAzureDiskVolumeSource},
	{key: "photonPersistentDisk", kind: pointer, of: keysOfPhotonPersistentDiskVolumeSource},
	{key: "projected", kind: pointer, of: keysOfProjectedVolumeSource},
	{key: "portworxVolume", kind: pointer, of: keysOfPortworxVolumeSource},
	{key: "scaleIO", kind: pointer, of: keysOfScaleIOVolumeSource},
	{key: "storageos", kind: pointer, of: keysOfStorageOSVolumeSource},
	{key: "csi", kind: pointer, of: keysOfCSIVolumeSource},
	{key: "ephemeral", kind: pointer, of: keysOfEphemeralVolumeSource},
	{key: "image", kind: pointer, of: keysOfImageVolumeSource},
}}

var keysOfContainerPort = &object{fields: []field{
	{key: "name", kind: text},
	{key: "hostPort", kind: integer},
	{key: "containerPort", kind: integer, zero: "0"},
	{key: "protocol", kind: text},
	{key: "hostIP", kind: text},
}}

var keysOfConfigMapEnvSource = &object{fields: []field{
	{key: "name", kind: text},
	{key: "optional", kind: value},
}}

var keysOfSecretEnvSource = &object{fields: []field{
	{key: "name", kind: text},
	{key: "optional", kind: value},
}}

var keysOfEnvFromSource = &object{fields: []field{
	{key: "prefix", kind: text},
	{key: "configMapRef", kind: pointer, of: keysOfConfigMapEnvSource},
	{key: "secretRef", kind: pointer, of: keysOfSecretEnvSource},
}}

var keysOfConfigMapKeySelector = &object{fields: []field{
	{key: "name", kind: text},
	{key: "key", kind: text, zero: "\"\""},
	{key: "optional", kind: value},
}}

var keysOfSecretKeySelector = &object{fields: []field{
	{key: "name", kind: text},
	{key: "key", kind: text, zero: "\"\""},
	{key: "optional", kind: value},
}}

var keysOfFileKeySelector = &object{fields: []field{
	{key: "volumeName", kind: text, zero: "\"\""},
	{key: "path", kind: text, zero: "\"\""},
	{key: "key", kind: text, zero: "\"\""},
	{key: "optional", kind: value},
}}

var keysOfEnvVarSource = &object{fields: []field{
	{key: "fieldRef", kind: pointer, of: keysOfObjectFieldSelector},
	{key: "resourceFieldRef", kind: pointer, of: keysOfResourceFieldSelector},
	{key: "configMapKeyRef", kind: pointer, of: keysOfConfigMapKeySelector},
	{key: "secretKeyRef", kind: pointer, of: keysOfSecretKeySelector},
	{key: "fileKeyRef", kind: pointer, of: keysOfFileKeySelector},
}}

var keysOfEnvVar = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "value", kind: text},
	{key: "valueFrom", kind: pointer, of: keysOfEnvVarSource},
}}

var keysOfResourceClaim = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "request", kind: text},
}}

var keysOfResourceRequirements = &object{fields: []field{
	{key: "limits", kind: collection},
	{key: "requests", kind: collection},
	{key: "claims", kind: list, of: keysOfResourceClaim},
}}

var keysOfContainerResizePolicy = &object{fields: []field{
	{key: "resourceName", kind: text, zero: "\"\""},
	{key: "restartPolicy", kind: text, zero: "\"\""},
}}

var keysOfContainerRestartRuleOnExitCodes = &object{fields: []field{
	{key: "operator", kind: text},
	{key: "values", kind: collection},
}}

var keysOfContainerRestartRule = &object{fields: []field{
	{key: "action", kind: text},
	{key: "exitCodes", kind: pointer, of: keysOfContainerRestartRuleOnExitCodes},
}}

var keysOfVolumeMount = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "readOnly", kind: boolean},
	{key: "recursiveReadOnly", kind: value},
	{key: "mountPath", kind: text, zero: "\"\""},
	{key: "subPath", kind: text},
	{key: "mountPropagation", kind: value},
	{key: "subPathExpr", kind: text},
	{key: "bindMountOptions", kind: collection},
}}

var keysOfVolumeDevice = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "devicePath", kind: text, zero: "\"\""},
}}

var keysOfExecAction = &object{fields: []field{
	{key: "command", kind: collection},
}}

var keysOfHTTPHeader = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "value", kind: text, zero: "\"\""},
}}

var keysOfHTTPGetAction = &object{fields: []field{
	{key: "path", kind: text},
	{key: "port", kind: value, zero: "0"},
	{key: "host", kind: text},
	{key: "scheme", kind: text},
	{key: "httpHeaders", kind: list, of: keysOfHTTPHeader},
	{key: "protocol", kind: value},
}}

var keysOfTCPSocketAction = &object{fields: []field{
	{key: "port", kind: value, zero: "0"},
	{key: "host", kind: text},
}}

var keysOfGRPCAction = &object{fields: []field{
	{key: "port", kind: integer, zero: "0"},
	{key: "service", kind: value, zero: "null"},
	{key: "mode", kind: value},
}}

var keysOfProbe = &object{fields: []field{
	{key: "exec", kind: pointer, of: keysOfExecAction},
	{key: "httpGet", kind: pointer, of: keysOfHTTPGetAction},
	{key: "tcpSocket", kind: pointer, of: keysOfTCPSocketAction},
	{key: "grpc", kind: pointer, of: keysOfGRPCAction},
	{key: "initialDelaySeconds", kind: integer},
	{key: "timeoutSeconds", kind: integer},
	{key: "periodSeconds", kind: integer},
	{key: "successThreshold", kind: integer},
	{key: "failureThreshold", kind: integer},
	{key: "terminationGracePeriodSeconds", kind: value},
}}

var keysOfSleepAction = &object{fields: []field{
	{key: "seconds", kind: integer, zero: "0"},
}}

var keysOfLifecycleHandler = &object{fields: []field{
	{key: "exec", kind: pointer, of: keysOfExecAction},
	{key: "httpGet", kind: pointer, of: keysOfHTTPGetAction},
	{key: "tcpSocket", kind: pointer, of: keysOfTCPSocketAction},
	{key: "sleep", kind: pointer, of: keysOfSleepAction},
}}

var keysOfLifecycle = &object{fields: []field{
	{key: "postStart", kind: pointer, of: keysOfLifecycleHandler},
	{key: "preStop", kind: pointer, of: keysOfLifecycleHandler},
	{key: "stopSignal", kind: value},
}}

var keysOfCapabilities = &object{fields: []field{
	{key: "add", kind: collection},
	{key: "drop", kind: collection},
}}

var keysOfSELinuxOptions = &object{fields: []field{
	{key: "user", kind: text},
	{key: "role", kind: text},
	{key: "type", kind: text},
	{key: "level", kind: text},
}}

var keysOfWindowsSecurityContextOptions = &object{fields: []field{
	{key: "gmsaCredentialSpecName", kind: value},
	{key: "gmsaCredentialSpec", kind: value},
	{key: "runAsUserName", kind: value},
	{key: "hostProcess", kind: value},
}}

var keysOfSeccompProfile = &object{fields: []field{
	{key: "type", kind: text, zero: "\"\""},
	{key: "localhostProfile", kind: value},
}}

var keysOfAppArmorProfile = &object{fields: []field{
	{key: "type", kind: text, zero: "\"\""},
	{key: "localhostProfile", kind: value},
}}

var keysOfSecurityContext = &object{fields: []field{
	{key: "capabilities", kind: pointer, of: keysOfCapabilities},
	{key: "privileged", kind: value},
	{key: "seLinuxOptions", kind: pointer, of: keysOfSELinuxOptions},
	{key: "windowsOptions", kind: pointer, of: keysOfWindowsSecurityContextOptions},
	{key: "runAsUser", kind: value},
	{key: "runAsGroup", kind: value},
	{key: "runAsNonRoot", kind: value},
	{key: "readOnlyRootFilesystem", kind: value},
	{key: "allowPrivilegeEscalation", kind: value},
	{key: "procMount", kind: value},
	{key: "seccompProfile", kind: pointer, of: keysOfSeccompProfile},
	{key: "appArmorProfile", kind: pointer, of: keysOfAppArmorProfile},
}}

var keysOfContainer = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "image", kind: text},
	{key: "command", kind: collection},
	{key: "args", kind: collection},
	{key: "workingDir", kind: text},
	{key: "ports", kind: list, of: keysOfContainerPort},
	{key: "envFrom", kind: list, of: keysOfEnvFromSource},
	{key: "env", kind: list, of: keysOfEnvVar},
	{key: "resources", kind: embedded, of: keysOfResourceRequirements},
	{key: "resizePolicy", kind: list, of: keysOfContainerResizePolicy},
	{key: "restartPolicy", kind: value},
	{key: "restartPolicyRules", kind: list, of: keysOfContainerRestartRule},
	{key: "volumeMounts", kind: list, of: keysOfVolumeMount},
	{key: "volumeDevices", kind: list, of: keysOfVolumeDevice},
	{key: "livenessProbe", kind: pointer, of: keysOfProbe},
	{key: "readinessProbe", kind: pointer, of: keysOfProbe},
	{key: "startupProbe", kind: pointer, of: keysOfProbe},
	{key: "lifecycle", kind: pointer, of: keysOfLifecycle},
	{key: "terminationMessagePath", kind: text},
	{key: "terminationMessagePolicy", kind: text},
	{key: "imagePullPolicy", kind: text},
	{key: "securityContext", kind: pointer, of: keysOfSecurityContext},
	{key: "stdin", kind: boolean},
	{key: "stdinOnce", kind: boolean},
	{key: "tty", kind: boolean},
}}

var keysOfEphemeralContainer = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "image", kind: text},
	{key: "command", kind: collection},
	{key: "args", kind: collection},
	{key: "workingDir", kind: text},
	{key: "ports", kind: list, of: keysOfContainerPort},
	{key: "envFrom", kind: list, of: keysOfEnvFromSource},
	{key: "env", kind: list, of: keysOfEnvVar},
	{key: "resources", kind: embedded, of: keysOfResourceRequirements},
	{key: "resizePolicy", kind: list, of: keysOfContainerResizePolicy},
	{key: "restartPolicy", kind: value},
	{key: "restartPolicyRules", kind: list, of: keysOfContainerRestartRule},
	{key: "volumeMounts", kind: list, of: keysOfVolumeMount},
	{key: "volumeDevices", kind: list, of: keysOfVolumeDevice},
	{key: "livenessProbe", kind: pointer, of: keysOfProbe},
	{key: "readinessProbe", kind: pointer, of: keysOfProbe},
	{key: "startupProbe", kind: pointer, of: keysOfProbe},
	{key: "lifecycle", kind: pointer, of: keysOfLifecycle},
	{key: "terminationMessagePath", kind: text},
	{key: "terminationMessagePolicy", kind: text},
	{key: "imagePullPolicy", kind: text},
	{key: "securityContext", kind: pointer, of: keysOfSecurityContext},
	{key: "stdin", kind: boolean},
	{key: "stdinOnce", kind: boolean},
	{key: "tty", kind: boolean},
	{key: "targetContainerName", kind: text},
}}

var keysOfSysctl = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "value", kind: text, zero: "\"\""},
}}

var keysOfPodSecurityContext = &object{fields: []field{
	{key: "seLinuxOptions", kind: pointer, of: keysOfSELinuxOptions},
	{key: "windowsOptions", kind: pointer, of: keysOfWindowsSecurityContextOptions},
	{key: "runAsUser", kind: value},
	{key: "runAsGroup", kind: value},
	{key: "runAsNonRoot", kind: value},
	{key: "supplementalGroups", kind: collection},
	{key: "supplementalGroupsPolicy", kind: value},
	{key: "fsGroup", kind: value},
	{key: "sysctls", kind: list, of: keysOfSysctl},
	{key: "fsGroupChangePolicy", kind: value},
	{key: "seccompProfile", kind: pointer, of: keysOfSeccompProfile},
	{key: "appArmorProfile", kind: pointer, of: keysOfAppArmorProfile},
	{key: "seLinuxChangePolicy", kind: value},
}}

var keysOfNodeSelectorRequirement = &object{fields: []field{
	{key: "key", kind: text, zero: "\"\""},
	{key: "operator", kind: text, zero: "\"\""},
	{key: "values", kind: collection},
}}

var keysOfNodeSelectorTerm = &object{fields: []field{
	{key: "matchExpressions", kind: list, of: keysOfNodeSelectorRequirement},
	{key: "matchFields", kind: list, of: keysOfNodeSelectorRequirement},
}}

var keysOfNodeSelector = &object{fields: []field{
	{key: "nodeSelectorTerms", kind: list, zero: "null", of: keysOfNodeSelectorTerm},
}}

var keysOfPreferredSchedulingTerm = &object{fields: []field{
	{key: "weight", kind: integer, zero: "0"},
	{key: "preference", kind: embedded, of: keysOfNodeSelectorTerm},
}}

var keysOfNodeAffinity = &object{fields: []field{
	{key: "requiredDuringSchedulingIgnoredDuringExecution", kind: pointer, of: keysOfNodeSelector},
	{key: "preferredDuringSchedulingIgnoredDuringExecution", kind: list, of: keysOfPreferredSchedulingTerm},
}}

var keysOfPodAffinityTerm = &object{fields: []field{
	{key: "labelSelector", kind: pointer, of: keysOfLabelSelector},
	{key: "namespaces", kind: collection},
	{key: "topologyKey", kind: text, zero: "\"\""},
	{key: "namespaceSelector", kind: pointer, of: keysOfLabelSelector},
	{key: "matchLabelKeys", kind: collection},
	{key: "mismatchLabelKeys", kind: collection},
}}

var keysOfWeightedPodAffinityTerm = &object{fields: []field{
	{key: "weight", kind: integer, zero: "0"},
	{key: "podAffinityTerm", kind: embedded, of: keysOfPodAffinityTerm},
}}

var keysOfPodAffinity = &object{fields: []field{
	{key: "requiredDuringSchedulingIgnoredDuringExecution", kind: list, of: keysOfPodAffinityTerm},
	{key: "preferredDuringSchedulingIgnoredDuringExecution", kind: list, of: keysOfWeightedPodAffinityTerm},
}}

var keysOfPodAntiAffinity = &object{fields: []field{
	{key: "requiredDuringSchedulingIgnoredDuringExecution", kind: list, of: keysOfPodAffinityTerm},
	{key: "preferredDuringSchedulingIgnoredDuringExecution", kind: list, of: keysOfWeightedPodAffinityTerm},
}}

var keysOfAffinity = &object{fields: []field{
	{key: "nodeAffinity", kind: pointer, of: keysOfNodeAffinity},
	{key: "podAffinity", kind: pointer, of: keysOfPodAffinity},
	{key: "podAntiAffinity", kind: pointer, of: keysOfPodAntiAffinity},
}}

var keysOfToleration = &object{fields: []field{
	{key: "key", kind: text},
	{key: "operator", kind: text},
	{key: "value", kind: text},
	{key: "effect", kind: text},
	{key: "tolerationSeconds", kind: value},
}}

var keysOfHostAlias = &object{fields: []field{
	{key: "ip", kind: text, zero: "\"\""},
	{key: "hostnames", kind: collection},
}}

var keysOfPodDNSConfigOption = &object{fields: []field{
	{key: "name", kind: text},
	{key: "value", kind: value},
}}

var keysOfPodDNSConfig = &object{fields: []field{
	{key: "nameservers", kind: collection},
	{key: "searches", kind: collection},
	{key: "options", kind: list, of: keysOfPodDNSConfigOption},
}}

var keysOfPodReadinessGate = &object{fields: []field{
	{key: "conditionType", kind: text, zero: "\"\""},
}}

var keysOfTopologySpreadConstraint = &object{fields: []field{
	{key: "maxSkew", kind: integer, zero: "0"},
	{key: "topologyKey", kind: text, zero: "\"\""},
	{key: "whenUnsatisfiable", kind: text, zero: "\"\""},
	{key: "labelSelector", kind: pointer, of: keysOfLabelSelector},
	{key: "minDomains", kind: value},
	{key: "nodeAffinityPolicy", kind: value},
	{key: "nodeTaintsPolicy", kind: value},
	{key: "matchLabelKeys", kind: collection},
}}

var keysOfPodOS = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
}}

var keysOfPodSchedulingGate = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
}}

var keysOfPodResourceClaim = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "resourceClaimName", kind: value},
	{key: "resourceClaimTemplateName", kind: value},
}}

var keysOfPodSchedulingGroup = &object{fields: []field{
	{key: "podGroupName", kind: value},
}}

var keysOfEvictionResponder = &object{fields: []field{
	{key: "name", kind: text, zero: "\"\""},
	{key: "priority", kind: value, zero: "null"},
}}

var keysOfPodSpec = &object{fields: []field{
	{key: "volumes", kind: list, of: keysOfVolume},
	{key: "initContainers", kind: list, of: keysOfContainer},
	{key: "containers", kind: list, zero: "null", of: keysOfContainer},
	{key: "ephemeralContainers", kind: list, of: keysOfEphemeralContainer},
	{key: "restartPolicy", kind: text},
	{key: "terminationGracePeriodSeconds", kind: value},
	{key: "activeDeadlineSeconds", kind: value},
	{key: "dnsPolicy", kind: text},
	{key: "nodeSelector", kind: collection},
	{key: "serviceAccountName", kind: text},
	{key: "serviceAccount", kind: text},
	{key: "automountServiceAccountToken", kind: value},
	{key: "nodeName", kind: text},
	{key: "hostNetwork", kind: boolean},
	{key: "hostPID", kind: boolean},
	{key: "hostIPC", kind: boolean},
	{key: "shareProcessNamespace", kind: value},
	{key: "securityContext", kind: pointer, of: keysOfPodSecurityContext},
	{key: "imagePullSecrets", kind: list, of: keysOfLocalObjectReference},
	{key: "hostname", kind: text},
	{key: "subdomain", kind: text},
	{key: "affinity", kind: pointer, of: keysOfAffinity},
	{key: "schedulerName", kind: text},
	{key: "tolerations", kind: list, of: keysOfToleration},
	{key: "hostAliases", kind: list, of: keysOfHostAlias},
	{key: "priorityClassName", kind: text},
	{key: "priority", kind: value},
	{key: "dnsConfig", kind: pointer, of: keysOfPodDNSConfig},
	{key: "readinessGates", kind: list, of: keysOfPodReadinessGate},
	{key: "runtimeClassName", kind: value},
	{key: "enableServiceLinks", kind: value},
	{key: "preemptionPolicy", kind: value},
	{key: "overhead", kind: collection},
	{key: "topologySpreadConstraints", kind: list, of: keysOfTopologySpreadConstraint},
	{key: "setHostnameAsFQDN", kind: value},
	{key: "os", kind: pointer, of: keysOfPodOS},
	{key: "hostUsers", kind: value},
	{key: "schedulingGates", kind: list, of: keysOfPodSchedulingGate},
	{key: "resourceClaims", kind: list, of: keysOfPodResourceClaim},
	{key: "resources", kind: pointer, of: keysOfResourceRequirements},
	{key: "hostnameOverride", kind: value},
	{key: "schedulingGroup", kind: pointer, of: keysOfPodSchedulingGroup},
	{key: "evictionResponders", kind: list, of: keysOfEvictionResponder},
}}

var keysOfPodTemplateSpec = &object{fields: []field{
	{key: "metadata", kind: embedded, of: keysOfObjectMeta},
	{key: "spec", kind: embedded, of: keysOfPodSpec},
}}
